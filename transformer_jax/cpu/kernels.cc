// The functions that XLA calls on a CPU: attention and its gradient, and products of few rows.
// `library.py` builds and loads them.
#include <cstdint>

#include "attention_forward.h"
#include "attention_gradient.h"
#include "skinny_product.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Floats32 = ffi::Buffer<ffi::F32>;
using Mask = ffi::Buffer<ffi::PRED>;
using Ids = ffi::Buffer<ffi::S32>;
using Bits = ffi::Buffer<ffi::U8>;

ffi::Error ended(bool enough_memory) {
  if (enough_memory) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "a kernel on a CPU: out of memory");
}

// Attention of arrays of one dtype, with its elements.
template <ffi::DataType DTYPE, class E>
struct Attention {
  using Array = ffi::Buffer<DTYPE>;
  using Result = ffi::ResultBuffer<DTYPE>;
  using Rows = ffi::ResultBuffer<ffi::F32>;

  static const E* read(const Array& array) {
    return reinterpret_cast<const E*>(array.typed_data());
  }
  static E* written(Result& result) { return reinterpret_cast<E*>(result->typed_data()); }

  // The logical shapes have the heads first, [B, K, G, T, H] and [B, K, S, H] with N = K G; in
  // memory they come behind T and S, except for keys and values that are `heads_first`. Without
  // padding `is_token` has no elements, without segments the ids, without dropout `kept`, and if
  // the cotangent of the logsumexp is 0 `d_logsumexp`.
  static Problem problem(const Array& query, const Array& key, const Array& value,
                         const Mask& is_token, const Ids& query_ids, const Ids& key_ids,
                         const Bits& kept, int64_t left, int64_t right, float scale,
                         float kept_scale) {
    const auto q = query.dimensions(), k = key.dimensions(), v = value.dimensions();
    const bool padded = is_token.element_count() > 0;
    const auto* tokens =
        padded ? reinterpret_cast<const uint8_t*>(is_token.typed_data()) : nullptr;
    Problem p{q[0], q[3],  q[1] * q[2], q[4],  k[2],   k[1],
              v[3], left, right,       scale, tokens, (long)is_token.dimensions()[0]};
    if (query_ids.element_count() > 0) {
      p.query_ids = query_ids.typed_data();
      p.key_ids = key_ids.typed_data();
      p.ids = query_ids.dimensions()[0];
    }
    if (kept.element_count() > 0) {
      p.kept = reinterpret_cast<const uint8_t*>(kept.typed_data());
      p.kept_rows = kept.dimensions()[3];
      p.kept_scale = kept_scale;
    }
    return p;
  }

  static ffi::Error forward(ffi::ThreadPool pool, Array query, Array key, Array value,
                            Mask is_token, Ids query_ids, Ids key_ids, Bits kept, Result output,
                            Rows highest, Rows log_total, int64_t left, int64_t right, float scale,
                            float kept_scale, bool heads_first) {
    Problem p = problem(query, key, value, is_token, query_ids, key_ids, kept, left, right, scale,
                        kept_scale);
    p.heads_first = heads_first;
    if (!fit(p, key, value, is_token, query_ids, key_ids, kept)) return sizes_differ();
    return ended(attend(pool, p, read(query), read(key), read(value), written(output),
                        {highest->typed_data(), log_total->typed_data()}));
  }

  static ffi::Error backward(ffi::ThreadPool pool, Array query, Array key, Array value,
                             Mask is_token, Ids query_ids, Ids key_ids, Bits kept,
                             Array d_output, Floats32 highest, Floats32 log_total, Array output,
                             Floats32 d_logsumexp, Result d_query, Result d_key, Result d_value,
                             int64_t left, int64_t right, float scale, float kept_scale) {
    const Problem p = problem(query, key, value, is_token, query_ids, key_ids, kept, left, right,
                              scale, kept_scale);
    const size_t rows = p.B * p.N * p.T;
    const bool has_d_logsumexp = d_logsumexp.element_count() > 0;
    if (!fit(p, key, value, is_token, query_ids, key_ids, kept) ||
        d_output.element_count() != rows * p.O || output.element_count() != rows * p.O ||
        highest.element_count() != rows || log_total.element_count() != rows ||
        (has_d_logsumexp && d_logsumexp.element_count() != rows))
      return sizes_differ();
    const Outputs<E> found{read(output), read(d_output),
                           {highest.typed_data(), log_total.typed_data()},
                           has_d_logsumexp ? d_logsumexp.typed_data() : nullptr};
    return ended(differentiate(pool, p, read(query), read(key), read(value), found,
                               written(d_query), written(d_key), written(d_value)));
  }

  // Whether the arrays have the sizes of the problem. Others would be read beyond their ends.
  static bool fit(const Problem& p, const Array& key, const Array& value, const Mask& is_token,
                  const Ids& query_ids, const Ids& key_ids, const Bits& kept) {
    const auto has = [](const auto& array, long size) {
      return array.element_count() == (size_t)size;
    };
    const bool tokens_fit = !p.is_token || ((p.tokens == 1 || p.tokens == p.B) &&
                                            has(is_token, p.tokens * p.S));
    const bool ids_fit = !p.query_ids || ((p.ids == 1 || p.ids == p.B) &&
                                          has(query_ids, p.ids * p.T) &&
                                          has(key_ids, p.ids * p.S));
    const bool kept_fit = !p.kept || (p.kept_rows == rounded_up(p.T, QUERIES) &&
                                      has(kept, p.B * p.N * Kept::groups(p) * Kept::LANES *
                                                    p.kept_rows));
    return has(key, p.B * p.S * p.K * p.H) && has(value, p.B * p.S * p.K * p.O) && tokens_fit &&
           ids_fit && kept_fit;
  }

  static ffi::Error sizes_differ() {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                      "attention on a CPU: sizes of arrays differ");
  }
};

using AttentionOfFloat32 = Attention<ffi::F32, float>;
using AttentionOfBFloat16 = Attention<ffi::BF16, BFloat16>;

// The product of x [rows, depth] with weights [depth, columns], or [columns, depth] if transposed.
template <ffi::DataType DTYPE, class E>
ffi::Error multiply(ffi::ThreadPool pool, Floats32 x, ffi::Buffer<DTYPE> weights,
                    ffi::ResultBuffer<ffi::F32> y, bool transposed) {
  const auto of_x = x.dimensions(), of_weights = weights.dimensions();
  const Product p{of_x[0], of_x[1], of_weights[transposed ? 0 : 1], x.typed_data(),
                  y->typed_data()};
  if (of_weights[transposed ? 1 : 0] != p.depth || (transposed ? p.depth : p.columns) % W != 0)
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "a product on a CPU: wrong sizes");
  const auto* w = reinterpret_cast<const E*>(weights.typed_data());
  return ended(transposed ? multiply_by_transposed_weights(pool, p, w)
                          : multiply_by_weights(pool, p, w));
}
constexpr auto multiply_float32 = multiply<ffi::F32, float>;
constexpr auto multiply_bfloat16 = multiply<ffi::BF16, BFloat16>;

}  // namespace

// Arguments and results in the order of `forward` and `backward`.
#define ARGUMENTS(KERNEL)                                                              \
  ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<KERNEL::Array>().Arg<KERNEL::Array>()    \
      .Arg<KERNEL::Array>().Arg<Mask>().Arg<Ids>().Arg<Ids>().Arg<Bits>()
#define NUMBERS                                                                        \
  Attr<int64_t>("left").Attr<int64_t>("right").Attr<float>("scale").Attr<float>("kept_scale")
#define HANDLERS(DTYPE, KERNEL)                                                        \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                       \
      attention_forward_##DTYPE, KERNEL::forward,                                      \
      ARGUMENTS(KERNEL).Ret<KERNEL::Array>().Ret<Floats32>().Ret<Floats32>()           \
          .NUMBERS.Attr<bool>("heads_first"));                                         \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                       \
      attention_backward_##DTYPE, KERNEL::backward,                                    \
      ARGUMENTS(KERNEL).Arg<KERNEL::Array>().Arg<Floats32>().Arg<Floats32>()           \
          .Arg<KERNEL::Array>().Arg<Floats32>().Ret<KERNEL::Array>()                   \
          .Ret<KERNEL::Array>().Ret<KERNEL::Array>().NUMBERS);                         \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                       \
      skinny_product_##DTYPE, multiply_##DTYPE,                                        \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Floats32>().Arg<KERNEL::Array>()     \
          .Ret<Floats32>().Attr<bool>("transposed"))

HANDLERS(float32, AttentionOfFloat32);
HANDLERS(bfloat16, AttentionOfBFloat16);
