// Finds where the latest tokens occurred before and what followed. Knows nothing about requests, models or Python.
//
// Texts lie one after another in a ring of tokens. For each of a few lengths n, the places after equal n-grams are linked
// from the latest backwards, as the match finders of LZ77 compressors do, so that neither adding a token nor looking up
// the latest ones depends on how much text there is, and the oldest text can be forgotten at no cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace outrider {

struct SuffixOptions {
    int64_t max_tokens = 0;   // most tokens to draft
    int64_t width = 1;        // 1: a chain; more: a tree of at most so many children per token
    int64_t min_match = 1;    // shortest match
    double floor = 0.0;       // a token whose estimated chance to be reached and accepted is below is left out
};

// Tokens in an order in which parents come first; parents[i] is a place among them or -1.
struct SuffixDraft {
    std::vector<int32_t> tokens;
    std::vector<int32_t> parents;
    std::vector<double> chances;  // estimated chance of each token to be reached and accepted
    double expected = 0.0;        // estimated number of accepted tokens: the sum of the chances
    int64_t match = 0;            // length of the match that it follows from
};

class SuffixIndex {
public:
    // Keeps the latest `limit` tokens; limit >= 1.
    explicit SuffixIndex(int64_t limit);
    // Tokens, all non-negative, go on with the text.
    void extend(const int32_t* tokens, int64_t count);
    // The text ends: what comes next neither continues it nor is its continuation.
    void end_text();
    // What may follow the text itself.
    SuffixDraft propose(const SuffixOptions& options) const;
    // What may follow `tail`, the latest tokens of some other text.
    SuffixDraft propose(const int32_t* tail, int64_t count, const SuffixOptions& options) const;
    int64_t size() const { return size_ < capacity_ ? size_ : capacity_; }  // tokens kept, ends of texts included
    int64_t bytes() const;

private:
    struct Match {
        int64_t next;    // place of what followed
        int64_t length;  // tokens that agree before it, at most kMaxMatch
    };
    static constexpr int kLevels = 4;
    static constexpr int64_t kGrams[kLevels] = {1, 2, 4, 8};
    static constexpr int64_t kMaxMatch = 64, kMaxMatches = 32, kMaxSteps = 256;

    void push(int32_t token);
    void link(int64_t place);
    // Room for `least` tokens, or for as many as are kept.
    void grow(int64_t least);
    int64_t oldest() const { return size_ > capacity_ ? size_ - capacity_ : 0; }
    int32_t at(int64_t place) const { return tokens_[std::size_t(place % capacity_)]; }
    // The place that a head or a link stands for, or -1: the latest one before `before` whose low bits they are.
    int64_t place_of(uint32_t low, int64_t before) const;
    std::vector<Match> matches(const int32_t* tail, int64_t count, int64_t min_match) const;
    SuffixDraft draft(const std::vector<Match>& matches, int64_t least, bool own, const SuffixOptions& options) const;
    SuffixDraft best(const std::vector<Match>& matches, bool own, const SuffixOptions& options) const;

    int64_t limit_, capacity_, size_ = 0, text_start_ = 0;
    std::vector<int32_t> tokens_;
    std::vector<uint32_t> heads_[kLevels], links_[kLevels];  // low bits of place + 1; 0 for none
};

}  // namespace outrider
