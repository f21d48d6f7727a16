// The kernels for CPUs against nested loops in double, in float32 and bfloat16 by turns: attention
// on drawn shapes, masks, padding and segments, and products of few rows. The exponential is
// compared with that of the C++ library, and the rounding of vectors with that of single numbers.
//
//     drawn_kernels NUMBER
//
// `test_library.py` builds it with the address and the undefined-behaviour sanitizer.
#include "kernels.cc"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

namespace {

struct Threads {
  long num_threads() const { return 3; }
  template <class Work>
  void Schedule(Work work) {
    running.emplace_back(std::move(work));
  }
  ~Threads() {
    for (auto& thread : running) thread.join();
  }
  std::vector<std::thread> running;
};

std::mt19937 generator(1);

long between(long least, long most) {
  return std::uniform_int_distribution<long>(least, most)(generator);
}

// Vectors have exactly as many elements as are used, so that the sanitizer sees one beyond.
template <class E>
std::vector<E> numbers(long n) {
  std::vector<E> found(n);
  std::normal_distribution<float> normal;
  for (E& x : found) write(&x, normal(generator));
  return found;
}

// Sums, and the sums of the sizes of their terms.
struct Sums {
  explicit Sums(size_t n) : values(n), sizes(n) {}
  std::vector<double> values, sizes;
};

// The sanitizers check the kernels, not these two loops, where they would spend most of the time.
#define NOT_SANITIZED __attribute__((no_sanitize("address", "undefined")))

NOT_SANITIZED double dot(long n, const double* x, const double* y) {
  double sum = 0;
  for (long i = 0; i < n; i++) sum += x[i] * y[i];
  return sum;
}

NOT_SANITIZED void add(long n, double a, const double* x, double* values, double* sizes) {
  for (long i = 0; i < n; i++) {
    values[i] += a * x[i];
    sizes[i] += __builtin_fabs(a * x[i]);
  }
}

// Add a x to the sums from element `start` on.
void add(long n, double a, const double* x, Sums* sums, long start) {
  add(n, a, x, &sums->values[start], &sums->sizes[start]);
}

template <class E>
std::vector<double> doubles(const std::vector<E>& x) {
  std::vector<double> found(x.size());
  for (size_t i = 0; i < x.size(); i++) found[i] = read(x[i]);
  return found;
}

// A bfloat16 has 8 bits, and so may the terms of its sum.
template <class E>
void compare(const char* name, const std::vector<E>& found, const Sums& right) {
  const bool is_short = sizeof(E) < sizeof(float);
  for (size_t i = 0; i < found.size(); i++) {
    const double value = right.values[i], size = std::abs(value);
    const double bound = is_short ? (size + right.sizes[i]) / 256 : 1e-4 * size;
    if (!(std::abs(read(found[i]) - value) <= 3e-5 + bound)) {
      std::printf("%s: element %zu is %g, not %g\n", name, i, read(found[i]), value);
      std::exit(1);
    }
  }
}

template <class E>
void one() {
  const long widths[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65};
  auto width = [&] { return widths[between(0, 11)]; };
  auto length = [] { return between(0, 2) ? between(1, 70) : between(60, 200); };
  Problem p{between(1, 2), length(), 0, width(), length(), between(1, 2), width(), -1, -1, 0.f,
            nullptr, 1};
  p.N = p.K * between(1, 3);
  if (!between(0, 4)) {  // one query, in most cases with widths that fill vectors
    p.T = 1;
    if (between(0, 2)) p.H = W * between(1, 5), p.O = W * between(1, 9);
  }
  const bool has_segments = !between(0, 2);
  if (has_segments && between(0, 1)) p.S = p.T;  // the texts of a row see themselves
  p.scale = 1 / std::sqrt((float)p.H);
  if (between(0, 2) && (p.T > 1 || between(0, 1))) {
    if (between(0, 2)) p.right = between(0, 1) ? 0 : between(0, 90);
    if (between(0, 1)) p.left = between(0, 90);
  }
  const auto q = numbers<E>(p.B * p.T * p.N * p.H), d_out = numbers<E>(p.B * p.T * p.N * p.O);
  auto k = numbers<E>(p.B * p.S * p.K * p.H), v = numbers<E>(p.B * p.S * p.K * p.O);
  std::vector<uint8_t> tokens;
  const long share_seen = between(0, 4);
  if (between(0, 1)) {
    p.tokens = between(0, 1) ? p.B : 1;
    for (long i = 0; i < p.tokens * p.S; i++) tokens.push_back(between(0, 3) < share_seen);
    p.is_token = tokens.data();
  }
  auto is_token = [&](long b, long s) {
    return tokens.empty() || tokens[(p.tokens > 1 ? b : 0) * p.S + s];
  };
  // Segments of drawn lengths in order, as packed texts have them, or of ids in any order.
  std::vector<int32_t> query_ids, key_ids;
  if (has_segments) {
    p.ids = between(0, 1) ? p.B : 1;
    const long texts = between(1, 6), in_order = between(0, 2);
    auto draw = [&](long n) {
      std::vector<int32_t> ids(p.ids * n);
      for (int32_t& id : ids) id = between(-1, texts);
      if (in_order)
        for (long b = 0; b < p.ids; b++) std::sort(&ids[b * n], &ids[b * n] + n);
      return ids;
    };
    query_ids = draw(p.T);
    key_ids = p.S == p.T && between(0, 3) ? query_ids : draw(p.S);
    p.query_ids = query_ids.data();
    p.key_ids = key_ids.data();
  }
  auto is_one_segment = [&](long b, long t, long s) {
    const long row = p.ids > 1 ? b : 0;
    return query_ids.empty() || query_ids[row * p.T + t] == key_ids[row * p.S + s];
  };
  auto sees = [&](long b, long t, long s) {
    const long distance = s - (t + p.S - p.T);
    return is_token(b, s) && is_one_segment(b, t, s) && (p.left < 0 || distance >= -p.left) &&
           (p.right < 0 || distance <= p.right);
  };
  std::vector<uint8_t> kept;
  if (!between(0, 2)) {
    p.kept_rows = rounded_up(p.T, QUERIES);
    kept.resize(p.B * p.N * Kept::groups(p) * Kept::LANES * p.kept_rows);
    for (uint8_t& byte : kept) byte = between(0, 255) | between(0, 255);
    p.kept = kept.data();
    p.kept_scale = 4.f / 3;
  }
  auto factor = [&](long b, long n, long t, long s) {
    if (kept.empty()) return 1.;
    const long group = ((b * p.N + n) * Kept::groups(p) + s / 512) * 64 + s % 64;
    return kept[group * p.kept_rows + t] >> s / 64 % 8 & 1 ? 4. / 3 : 0.;
  };
  const auto wide_q = doubles(q), wide_k = doubles(k), wide_v = doubles(v), wide_d = doubles(d_out);
  Sums output(d_out.size()), d_q(q.size()), d_k(k.size()), d_v(v.size());
  // The cotangent of the logsumexp, in half of the problems.
  const auto d_logsumexp = numbers<float>(between(0, 1) ? p.B * p.N * p.T : 0);
  std::vector<E> rounded_output(d_out.size());
  for (long b = 0; b < p.B; b++)
    for (long n = 0; n < p.N; n++)
      for (long t = 0; t < p.T; t++) {
        const long query = (b * p.T + t) * p.N + n, K = n / (p.N / p.K);
        auto key = [&](long s) { return (b * p.S + s) * p.K + K; };
        std::vector<double> weights(p.S), d_weights(p.S);
        double highest = -INF, total = 0, sum = 0;
        for (long s = 0; s < p.S; s++) {
          if (!sees(b, t, s)) continue;
          weights[s] = p.scale * dot(p.H, &wide_q[query * p.H], &wide_k[key(s) * p.H]);
          highest = std::max(highest, weights[s]);
        }
        for (long s = 0; s < p.S; s++)
          total += weights[s] = sees(b, t, s) ? std::exp(weights[s] - highest) : 0;
        for (long s = 0; s < p.S; s++) {
          if (total) weights[s] /= total;
          const double by = factor(b, n, t, s);
          const double *value = &wide_v[key(s) * p.O], *d = &wide_d[query * p.O];
          add(p.O, weights[s] * by, value, &output, query * p.O);
          add(p.O, weights[s] * by, d, &d_v, key(s) * p.O);
          d_weights[s] = by * dot(p.O, d, value);
        }
        // The kernel reads the output in its dtype.
        for (long o = query * p.O; o < (query + 1) * p.O; o++) {
          write(&rounded_output[o], output.values[o]);
          sum += read(rounded_output[o]) * wide_d[o];
        }
        if (d_logsumexp.size()) sum -= d_logsumexp[(b * p.N + n) * p.T + t];
        for (long s = 0; s < p.S; s++) {
          const double d = weights[s] * (d_weights[s] - sum) * p.scale;
          add(p.H, d, &wide_k[key(s) * p.H], &d_q, query * p.H);
          add(p.H, d, &wide_q[query * p.H], &d_k, key(s) * p.H);
        }
      }
  // What padding hides is never read.
  E nothing;
  write(&nothing, NAN);
  for (long i = 0; i < p.B * p.S * p.K; i++)
    if (!is_token(i / p.K / p.S, i / p.K % p.S)) {
      std::fill_n(&k[i * p.H], p.H, nothing);
      std::fill_n(&v[i * p.O], p.O, nothing);
    }
  std::vector<float> m(p.B * p.N * p.T), l(m.size());
  std::vector<E> out(d_out.size()), dq(q.size()), dk(k.size()), dv(v.size());
  {
    Threads pool;
    attend(pool, p, q.data(), k.data(), v.data(), out.data(), {m.data(), l.data()});
  }
  {
    Threads pool;
    const Outputs<E> found{rounded_output.data(), d_out.data(), {m.data(), l.data()},
                           d_logsumexp.empty() ? nullptr : d_logsumexp.data()};
    differentiate(pool, p, q.data(), k.data(), v.data(), found, dq.data(), dk.data(), dv.data());
  }
  compare("output", out, output);
  // The same for keys and values of which those of a head follow each other.
  auto by_head = [&](const std::vector<E>& rows, long width) {
    std::vector<E> moved(rows.size());
    for (long b = 0; b < p.B; b++)
      for (long s = 0; s < p.S; s++)
        for (long head = 0; head < p.K; head++)
          std::copy_n(&rows[((b * p.S + s) * p.K + head) * width], width,
                      &moved[((b * p.K + head) * p.S + s) * width]);
    return moved;
  };
  p.heads_first = true;
  {
    Threads pool;
    attend(pool, p, q.data(), by_head(k, p.H).data(), by_head(v, p.O).data(), out.data(),
           {m.data(), l.data()});
  }
  compare("output of keys by head", out, output);
  compare("d query", dq, d_q);
  compare("d key", dk, d_k);
  compare("d value", dv, d_v);
}

// A product, and one of its rows alone, which has the same bits.
template <class E>
void one_product(bool transposed) {
  long rows = between(1, 20), depth = between(1, 60), columns = between(1, 60);
  (transposed ? depth : columns) *= W;
  const auto x = numbers<float>(rows * depth);
  const auto w = numbers<E>(depth * columns);
  Sums right(rows * columns);
  for (long k = 0; k < depth; k++) {
    std::vector<double> weights(columns);
    for (long n = 0; n < columns; n++)
      weights[n] = read(w[transposed ? n * depth + k : k * columns + n]);
    for (long m = 0; m < rows; m++)
      add(columns, x[m * depth + k], weights.data(), &right, m * columns);
  }
  auto multiplied = [&](const float* from, long number) {
    std::vector<float> y(number * columns);
    const Product p{number, depth, columns, from, y.data()};
    Threads pool;
    transposed ? multiply_by_transposed_weights(pool, p, w.data())
               : multiply_by_weights(pool, p, w.data());
    return y;
  };
  const auto y = multiplied(x.data(), rows);
  compare(transposed ? "x w^T" : "x w", y, right);
  const long m = between(0, rows - 1);
  const auto alone = multiplied(x.data() + m * depth, 1);
  if (!std::equal(alone.begin(), alone.end(), y.begin() + m * columns)) {
    std::printf("row %ld is another alone\n", m);
    std::exit(1);
  }
}

// In units in the last place, and exactly 0 where e^x is no normal number.
void compare_exponential() {
  for (float x = 0; x > -100; x -= 1e-4f) {
    const float found = exponential(same(x))[0];
    const double right = x < -87.33f ? 0 : std::exp((double)x);
    const double unit = std::nextafter((float)right, INF) - (float)right;
    if (right ? std::abs(found - right) > 2 * unit : found != 0) {
      std::printf("e^%g is %g, not %g\n", x, found, right);
      std::exit(1);
    }
  }
  bool right = exponential(same(-INF))[0] == 0;
  for (uint32_t bits : {0x7fc00000u, 0x7fc00001u, 0x7f800001u, 0x7fffffffu, 0xffffffffu}) {
    float nan;
    std::memcpy(&nan, &bits, sizeof nan);
    right &= std::isnan(exponential(same(nan))[0]);
  }
  if (!right) {
    std::printf("e^x of -inf or NaN\n");
    std::exit(1);
  }
}

// Vectors are rounded to bfloat16 as single numbers are: infinities, NaN and ties too.
void compare_rounding() {
  for (long i = 0; i < 100000; i++) {
    uint32_t bits[W];
    for (uint32_t& x : bits) {
      x = between(0, 3) ? generator() : (uint32_t)between(0, 0xffff) << 16 | 0x8000;
      if (!between(0, 9)) x |= 0x7f800000;
      if (!between(0, 9)) x = (x & 0x80000000) | 0x7f800000;
    }
    float numbers[W];
    std::memcpy(numbers, bits, sizeof bits);
    BFloat16 together[W], alone[W];
    store(together, load(numbers));
    copy(numbers, W, alone);
    if (std::memcmp(together, alone, sizeof alone)) {
      std::printf("vectors are rounded in another way than numbers\n");
      std::exit(1);
    }
  }
}

}  // namespace

int main(int, char** words) {
  const int number = std::atoi(words[1]);
  compare_exponential();
  compare_rounding();
  for (int i = 0; i < number; i++) {
    i % 2 ? one<BFloat16>() : one<float>();
    i % 2 ? one_product<BFloat16>(i % 4 > 1) : one_product<float>(i % 4 > 1);
  }
  std::printf("%d problems agree\n", number);
}
