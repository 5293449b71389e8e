#include "suffix.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

constexpr int32_t kEnd = -1;

// A hash of the `count` tokens before `end`.
inline uint64_t gram_hash(const int32_t* end, int64_t count) {
    uint64_t h = 0x9E3779B97F4A7C15ull * uint64_t(count);
    for (int64_t i = 1; i <= count; ++i) h = (h ^ uint32_t(end[-i])) * 0xBF58476D1CE4E5B9ull, h ^= h >> 29;
    return h;
}

}  // namespace

SuffixIndex::SuffixIndex(int64_t limit) : limit_(limit), capacity_(std::min<int64_t>(limit, 1024)) {
    tokens_.resize(size_t(capacity_));
    for (int level = 0; level < kLevels; ++level) {
        heads_[level].assign(size_t(capacity_), 0);
        links_[level].assign(size_t(capacity_), 0);
    }
}

int64_t SuffixIndex::bytes() const { return int64_t(sizeof(*this)) + capacity_ * int64_t(4 + kLevels * 8); }

void SuffixIndex::extend(const int32_t* tokens, int64_t count) {
    if (size_ + count > capacity_ && capacity_ < limit_) grow(size_ + count);
    for (int64_t i = 0; i < count; ++i) push(tokens[i]);
}

void SuffixIndex::end_text() {
    if (size_ == text_start_) return;
    push(kEnd);
    text_start_ = size_;
}

void SuffixIndex::push(int32_t token) {
    if (size_ == capacity_ && capacity_ < limit_) grow(size_ + 1);
    tokens_[size_t(size_++ % capacity_)] = token;
    if (token != kEnd) link(size_ - 1);
}

// Add `place` to the lists of the n-grams that end before it.
void SuffixIndex::link(int64_t place) {
    int32_t latest[kGrams[kLevels - 1]];
    const int64_t known = std::min(place - std::max(text_start_, oldest()), kGrams[kLevels - 1]);
    for (int64_t i = 1; i <= known; ++i) latest[kGrams[kLevels - 1] - i] = at(place - i);
    for (int level = 0; level < kLevels && kGrams[level] <= known; ++level) {
        const uint64_t bucket = gram_hash(latest + kGrams[kLevels - 1], kGrams[level]) % uint64_t(capacity_);
        links_[level][size_t(place % capacity_)] = heads_[level][bucket];
        heads_[level][bucket] = uint32_t(place + 1);
    }
    for (int level = 0; level < kLevels; ++level)
        if (kGrams[level] > known) links_[level][size_t(place % capacity_)] = 0;
}

// Only called before the ring buffer wraps around, when positions are array indices. So tokens stay and links are rebuilt.
void SuffixIndex::grow(int64_t least) {
    const int64_t count = size_, start = text_start_;
    while (capacity_ < std::min(limit_, least)) capacity_ = std::min(limit_, 2 * capacity_);
    tokens_.resize(size_t(capacity_));
    for (int level = 0; level < kLevels; ++level) {
        heads_[level].assign(size_t(capacity_), 0);
        links_[level].assign(size_t(capacity_), 0);
    }
    text_start_ = 0;
    for (int64_t place = 0; place < count; ++place) {
        if (tokens_[size_t(place)] == kEnd) {
            text_start_ = place + 1;
        } else {
            link(place);
        }
    }
    text_start_ = start;
}

int64_t SuffixIndex::place_of(uint32_t low, int64_t before) const {
    if (low == 0) return -1;
    const int64_t place = before - int64_t(uint32_t(before) - (low - 1u));
    return place < before && place > oldest() ? place : -1;
}

// Longer n-grams first, and the latest match first for each. Lengths are exact up to kMaxMatch.
std::vector<SuffixIndex::Match> SuffixIndex::matches(const int32_t* tail, int64_t count, int64_t min_match) const {
    std::vector<Match> found;
    const int32_t* end = tail + count;
    int64_t longer = kMaxMatch + 1;  // matches of at least this length were found at an earlier level
    for (int level = kLevels - 1; level >= 0; --level) {
        const int64_t gram = kGrams[level];
        if (gram > count || int64_t(found.size()) >= kMaxMatches / 2) continue;
        const uint64_t bucket = gram_hash(end, gram) % uint64_t(capacity_);
        int64_t place = place_of(heads_[level][bucket], size_);
        for (int64_t step = 0; place >= 0 && step < kMaxSteps && int64_t(found.size()) < kMaxMatches; ++step) {
            const int64_t most = std::min({count, kMaxMatch, place - oldest()});
            int64_t length = 0;
            while (length < most && at(place - 1 - length) == end[-1 - length]) ++length;
            if (length >= std::max(gram, min_match) && length < longer) found.push_back({place, length});
            place = place_of(links_[level][size_t(place % capacity_)], place);
        }
        longer = gram;
    }
    return found;
}

SuffixDraft SuffixIndex::propose(const SuffixOptions& options) const {
    int32_t tail[kMaxMatch];
    const int64_t count = std::min(size_ - std::max(text_start_, oldest()), kMaxMatch);
    for (int64_t i = 1; i <= count; ++i) tail[count - i] = at(size_ - i);
    return best(matches(tail, count, options.min_match), true, options);
}

SuffixDraft SuffixIndex::propose(const int32_t* tail, int64_t count, const SuffixOptions& options) const {
    return best(matches(tail, count, options.min_match), false, options);
}

// Choose between few long matches and many short ones: the set with the most expected accepted tokens.
SuffixDraft SuffixIndex::best(const std::vector<Match>& found, bool own, const SuffixOptions& options) const {
    SuffixDraft chosen;
    if (found.empty() || options.max_tokens < 1) return chosen;
    int64_t longest = 0;
    for (const Match& match : found) longest = std::max(longest, match.length);
    int64_t least = longest;
    std::ptrdiff_t taken = 0;
    for (int level = kLevels; level >= 0; --level) {
        if (level < kLevels) {
            if (kGrams[level] >= longest) continue;
            least = kGrams[level];
        }
        if (least < options.min_match) break;
        const auto enough = [least](const Match& match) { return match.length >= least; };
        const std::ptrdiff_t more = std::count_if(found.begin(), found.end(), enough);
        if (more == taken) continue;  // the same matches with lower estimates
        taken = more;
        SuffixDraft draft_ = draft(found, least, own, options);
        if (draft_.expected > chosen.expected) chosen = std::move(draft_);
    }
    return chosen;
}

// Follow what most of the matches of at least `least` tokens go on with, token by token; of equally many, the latest.
//
// Let n matches agree with the draft so far, and let c of them continue with a token. The estimated probability of the
// token is c / (n + 1 / m), where m is the length of the match plus the drafted tokens: longer matches are more reliable.
SuffixDraft SuffixIndex::draft(const std::vector<Match>& found, int64_t least, bool own,
                               const SuffixOptions& options) const {
    struct Child {
        int32_t token;
        int64_t latest;
        std::vector<int64_t> places;  // after this token, in each match that continues with it
    };
    SuffixDraft result;
    std::vector<int64_t> places;  // per match that agrees with the draft: the position of its next token
    for (const Match& match : found)
        if (match.length >= least) places.push_back(match.next);
    double chance = 1.0;
    while (int64_t(result.tokens.size()) < options.max_tokens) {
        std::vector<Child> children;
        for (const int64_t place : places) {
            int32_t token = kEnd;
            if (place < size_) {
                token = place > oldest() ? at(place) : kEnd;
            } else if (own && place - size_ < int64_t(result.tokens.size())) {
                token = result.tokens[size_t(place - size_)];  // past the end of the text, the match continues in the draft
            }
            if (token == kEnd) continue;
            size_t i = 0;
            while (i < children.size() && children[i].token != token) ++i;
            if (i == children.size()) children.push_back({token, -1, {}});
            children[i].places.push_back(place + 1);
            children[i].latest = std::max(children[i].latest, place);
        }
        if (children.empty()) break;
        Child& best = *std::max_element(children.begin(), children.end(), [](const Child& a, const Child& b) {
            return a.places.size() != b.places.size() ? a.places.size() < b.places.size() : a.latest < b.latest;
        });
        const double trials = double(places.size()) + 1.0 / double(least + int64_t(result.tokens.size()));
        chance = chance * double(best.places.size()) / trials;
        if (chance < options.floor) break;
        result.tokens.push_back(best.token);
        result.chances.push_back(chance);
        result.expected += chance;
        places = std::move(best.places);
    }
    return result;
}

}  // namespace outrider
