// Python bindings of the suffix index.
#include <stdexcept>

#include "bindings.h"
#include "suffix.h"

namespace outrider {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void check_tokens(const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens)
        if (token < 0) fail("token id " + std::to_string(token) + " is negative");
}

SuffixOptions options_of(int64_t max_tokens, int64_t min_match, double floor) {
    if (max_tokens < 0) fail("max_tokens=" + std::to_string(max_tokens) + " must not be negative");
    if (min_match < 1) fail("min_match=" + std::to_string(min_match) + " must be at least 1");
    if (!(floor >= 0.0 && floor <= 1.0)) fail("floor=" + std::to_string(floor) + " must be between 0 and 1");
    return {max_tokens, min_match, floor};
}

nb::tuple as_tuple(const SuffixDraft& draft) {
    return nb::make_tuple(draft.tokens, draft.chances);
}

}  // namespace

void bind_suffix(nb::module_& m) {
    nb::class_<SuffixIndex>(m, "SuffixIndex")
        .def(
            "__init__",
            [](SuffixIndex* self, int64_t limit) {
                if (limit < 1) fail("limit=" + std::to_string(limit) + " must be at least 1");
                new (self) SuffixIndex(limit);
            },
            nb::arg("limit"))
        .def_prop_ro("size", &SuffixIndex::size)
        .def_prop_ro("nbytes", &SuffixIndex::bytes)
        .def("extend",
             [](SuffixIndex& self, const std::vector<int32_t>& tokens) {
                 check_tokens(tokens);
                 self.extend(tokens.data(), int64_t(tokens.size()));
             })
        .def("end_text", &SuffixIndex::end_text)
        .def(
            "propose",
            [](const SuffixIndex& self, int64_t max_tokens, int64_t min_match, double floor) {
                return as_tuple(self.propose(options_of(max_tokens, min_match, floor)));
            },
            nb::arg("max_tokens"), nb::kw_only(), nb::arg("min_match") = 1, nb::arg("floor") = 0.0)
        .def(
            "propose_after",
            [](const SuffixIndex& self, const std::vector<int32_t>& tail, int64_t max_tokens, int64_t min_match,
               double floor) {
                check_tokens(tail);
                return as_tuple(self.propose(tail.data(), int64_t(tail.size()),
                                             options_of(max_tokens, min_match, floor)));
            },
            nb::arg("tail"), nb::arg("max_tokens"), nb::kw_only(), nb::arg("min_match") = 1,
            nb::arg("floor") = 0.0);
}

}  // namespace outrider
