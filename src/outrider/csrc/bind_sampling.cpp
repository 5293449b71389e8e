// Python bindings of distributions, draws and log-probabilities.
#include <cmath>
#include <stdexcept>

#include <nanobind/stl/pair.h>

#include "bindings.h"
#include "sampling.h"

namespace outrider {
namespace {

using Row = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Weights = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

template <class T>
nb::ndarray<nb::numpy, T> array_of(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    const size_t shape[] = {kept->size()};
    return nb::ndarray<nb::numpy, T>(kept->data(), 1, shape, owner);
}

// Calls with the row as float or double, and its size.
template <class Body>
auto with_row(const Row& row, const Body& body) {
    const int64_t size = int64_t(row.shape(0));
    if (size < 1) fail("a row of logits must not be empty");
    if (row.dtype() == nb::dtype<float>()) return body(static_cast<const float*>(row.data()), size);
    if (row.dtype() == nb::dtype<double>()) return body(static_cast<const double*>(row.data()), size);
    fail("logits must be float32 or float64");
}

SamplingOptions options_of(const nb::kwargs& given) {
    SamplingOptions options;
    for (const auto& [key, value] : given) {
        const std::string name = nb::cast<std::string>(key);
#define OUTRIDER_OPTION(type, option, initial)  \
    if (name == #option) {                      \
        options.option = nb::cast<type>(value); \
        continue;                               \
    }
        OUTRIDER_SAMPLING_OPTIONS(OUTRIDER_OPTION)
#undef OUTRIDER_OPTION
        throw nb::type_error(("there is no sampling option '" + name + "'").c_str());
    }
    return options;
}

// The functions below give None for a row that has no distribution: one with a NaN or +inf, or with -inf alone.

nb::object py_probabilities(const Row& row, const nb::kwargs& given) {
    const SamplingOptions options = options_of(given);
    return with_row(row, [&](const auto* logits, int64_t size) -> nb::object {
        const auto scan = scan_row(logits, size);
        if (!std::isfinite(scan.peak)) return nb::none();
        if (!options.truncates(size)) {
            std::vector<double> probs(size_t(size), 0.0);
            dense_probabilities(scan, options.temperature, probs.data());
            return nb::cast(array_of(std::move(probs)));
        }
        Survivors kept = survivors(scan, options);
        const double sum = sum_of(kept.weights.data(), int64_t(kept.weights.size()));
        for (double& weight : kept.weights) weight /= sum;
        return nb::make_tuple(array_of(std::move(kept.ids)), array_of(std::move(kept.weights)));
    });
}

nb::object py_draw_token(const Row& row, uint64_t key, const nb::kwargs& given) {
    const SamplingOptions options = options_of(given);
    return with_row(row, [&](const auto* logits, int64_t size) -> nb::object {
        const auto scan = scan_row(logits, size);
        if (!std::isfinite(scan.peak)) return nb::none();
        return nb::int_(draw_token(scan, options, key));
    });
}

nb::object py_report(const Row& row, int64_t token, int64_t num_top) {
    return with_row(row, [&](const auto* logits, int64_t size) -> nb::object {
        if (token < 0 || token >= size) fail("token id " + std::to_string(token) + " is not below " + std::to_string(size));
        const auto scan = scan_row(logits, size);
        if (!std::isfinite(scan.peak)) return nb::none();
        const TokenReport report = token_report(scan, token, num_top);
        return nb::make_tuple(report.logprob, report.rank, report.top);
    });
}

nb::tuple py_draw(const Weights& weights, uint64_t key) {
    double total = 0.0;
    const int64_t index = keyed_draw(weights.data(), int64_t(weights.shape(0)), key, &total);
    return nb::make_tuple(index, total);
}

}  // namespace

void bind_sampling(nb::module_& m) {
    m.def("probabilities", &py_probabilities, nb::arg("logits"), nb::arg("options"));
    m.def("draw_token", &py_draw_token, nb::arg("logits"), nb::arg("key"), nb::arg("options"));
    m.def("token_report", &py_report, nb::arg("logits"), nb::arg("token"), nb::arg("num_top"));
    m.def("draw", &py_draw, nb::arg("weights"), nb::arg("key"));
}

}  // namespace outrider
