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

// Grow a tree of the continuations of all matches of at least `least` tokens, the most probable token first.
//
// Let n matches agree with the draft so far, and let c of them continue with a token. The estimated probability of the
// token is c / (n + 1 / m), where m is the length of the match plus the drafted tokens: longer matches are more reliable.
SuffixDraft SuffixIndex::draft(const std::vector<Match>& found, int64_t least, bool own,
                               const SuffixOptions& options) const {
    struct Node {
        int32_t parent, depth;
        int64_t children = 0;
        double chance;
        std::vector<int64_t> places;  // per match that agrees with the path: the position of its next token
        std::vector<int32_t> path;
    };
    struct Child {
        size_t node;
        int32_t token;
        double chance;
        int64_t latest;
        std::vector<int64_t> places;
    };
    SuffixDraft result;
    result.match = least;
    std::vector<Node> nodes(1);
    nodes[0] = {-1, 0, 0, 1.0, {}, {}};
    for (const Match& match : found)
        if (match.length >= least) nodes[0].places.push_back(match.next);
    std::vector<Child> waiting;
    const auto expand = [&](size_t index) {
        const Node& node = nodes[index];
        const size_t first = waiting.size();
        for (const int64_t place : node.places) {
            int32_t token = kEnd;
            if (place < size_) {
                token = place > oldest() ? at(place) : kEnd;
            } else if (own && place - size_ < int64_t(node.path.size())) {
                token = node.path[size_t(place - size_)];  // past the end of the text, the match continues in the draft
            }
            if (token == kEnd) continue;
            size_t i = first;
            while (i < waiting.size() && waiting[i].token != token) ++i;
            if (i == waiting.size()) waiting.push_back({index, token, 0.0, -1, {}});
            waiting[i].places.push_back(place + 1);
            waiting[i].latest = std::max(waiting[i].latest, place);
        }
        const double trials = double(node.places.size()) + 1.0 / double(least + node.depth);
        for (size_t i = first; i < waiting.size(); ++i)
            waiting[i].chance = node.chance * double(waiting[i].places.size()) / trials;
    };
    expand(0);
    while (int64_t(result.tokens.size()) < options.max_tokens && !waiting.empty()) {
        size_t top = 0;
        for (size_t i = 1; i < waiting.size(); ++i) {
            const Child &a = waiting[i], &b = waiting[top];
            if (a.chance > b.chance || (a.chance == b.chance && a.latest > b.latest)) top = i;
        }
        Child child = std::move(waiting[top]);
        waiting[top] = std::move(waiting.back());
        waiting.pop_back();
        if (child.chance < options.floor) break;
        Node& parent = nodes[child.node];
        if (++parent.children > options.width) continue;
        result.tokens.push_back(child.token);
        result.parents.push_back(int32_t(child.node) - 1);
        result.chances.push_back(child.chance);
        result.expected += child.chance;
        Node node{int32_t(child.node), parent.depth + 1, 0, child.chance, std::move(child.places), parent.path};
        node.path.push_back(child.token);
        nodes.push_back(std::move(node));
        expand(nodes.size() - 1);
    }
    return result;
}

}  // namespace outrider
