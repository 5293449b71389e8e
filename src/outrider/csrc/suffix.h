// Finds earlier occurrences of the last tokens and proposes what followed them. Knows nothing about requests, models or
// Python.
//
// Texts are stored one after another in a ring buffer of tokens. For each length n in kGrams, the positions after equal
// n-grams form a linked list from the latest to the oldest, as in the match finders of LZ77 compressors. So the cost of
// adding a token and of a look-up does not depend on the amount of text, and dropping the oldest text costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace outrider {

struct SuffixOptions {
    int64_t max_tokens = 0;   // largest number of drafted tokens
    int64_t min_match = 1;    // shortest match, in tokens
    double floor = 0.0;       // leave out tokens whose estimated probability to be reached and accepted is lower
};

struct SuffixDraft {
    std::vector<int32_t> tokens;
    std::vector<double> chances;  // estimated probability of each token to be reached and accepted
    double expected = 0.0;        // estimated number of accepted tokens: the sum of the chances
};

class SuffixIndex {
public:
    // Keeps the latest `limit` tokens; limit >= 1.
    explicit SuffixIndex(int64_t limit);
    // Append tokens, all non-negative, to the current text.
    void extend(const int32_t* tokens, int64_t count);
    // End the current text. Matches and continuations do not cross the end of a text.
    void end_text();
    // Draft the continuation of the current text.
    SuffixDraft propose(const SuffixOptions& options) const;
    // Draft the continuation of `tail`, the last tokens of another text.
    SuffixDraft propose(const int32_t* tail, int64_t count, const SuffixOptions& options) const;
    int64_t size() const { return size_ < capacity_ ? size_ : capacity_; }  // stored tokens, including ends of texts
    int64_t bytes() const;

private:
    struct Match {
        int64_t next;    // position of the token after the match
        int64_t length;  // number of matching tokens before it, at most kMaxMatch
    };
    static constexpr int kLevels = 4;
    static constexpr int64_t kGrams[kLevels] = {1, 2, 4, 8};
    static constexpr int64_t kMaxMatch = 64, kMaxMatches = 32, kMaxSteps = 256;

    void push(int32_t token);
    void link(int64_t place);
    // Raise the capacity to at least min(least, limit_).
    void grow(int64_t least);
    int64_t oldest() const { return size_ > capacity_ ? size_ - capacity_ : 0; }
    int32_t at(int64_t place) const { return tokens_[std::size_t(place % capacity_)]; }
    // The latest position before `before` whose low 32 bits match a head or link; -1 if it is not stored any more.
    int64_t place_of(uint32_t low, int64_t before) const;
    std::vector<Match> matches(const int32_t* tail, int64_t count, int64_t min_match) const;
    SuffixDraft draft(const std::vector<Match>& matches, int64_t least, bool own, const SuffixOptions& options) const;
    SuffixDraft best(const std::vector<Match>& matches, bool own, const SuffixOptions& options) const;

    int64_t limit_, capacity_, size_ = 0, text_start_ = 0;
    std::vector<int32_t> tokens_;
    std::vector<uint32_t> heads_[kLevels], links_[kLevels];  // low bits of place + 1; 0 for none
};

}  // namespace outrider
