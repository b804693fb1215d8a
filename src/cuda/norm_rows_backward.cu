// Layer norm and RMS norm, backward.
//
//   g = dy * (weight + offset), xhat = (x - mean) * rstd, averages over the row:
//   dx = rstd * (g - avg(g) - xhat * avg(g * xhat)) + dresidual        RMS: without avg(g)
//   dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
//
// dy, x and dx once are the floor, at 16384 x 4096 of 16 bits 403 MB. A team of up to 1024 threads
// shares a row, 16 bytes of it each (prims/row_pieces.cuh). Threads keep their columns from row to
// row and add up dweight and dbias in registers, while the next row is on its way to shared memory;
// each block, about one for a multiprocessor, leaves one row of such sums in the workspace (4.3 MB
// at 4096 columns), which a second kernel adds in order. The blocks' number follows from the shape
// alone. Rows that do not lie at multiples of 16 bytes are loaded when their turn comes.
//
// Rows of more than 16 KB are cut into strips: a first kernel leaves the two averages of each row in
// the workspace, then blocks go down their strip of columns; dy and x are read twice. Rows at any
// strides are walked by one warp or one block (prims/rows.cuh), and the gradients of the weights are
// a two-stage column reduction of its own (prims/columns.cuh), before dx is written, since dx may be
// dy or x.
//
// Bound by memory. Sums in float32 (float64 for float64); a row's in an order that n alone decides.
#include "cuda/norm_rows.cuh"
#include "cuda/prims/columns.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <class T>
struct Args {
  using Acc = Accumulator<T>;
  Elements<4> elements;  // dy, x, dresidual, dx
  const T *dy, *x, *dresidual;
  T* dx;
  MixedView<T> weight, mean, rstd, dweight, dbias;
  Acc weight_offset;
  bool rms;

  explicit Args(const RowNormBackward& p)
      : elements({&p.dy, &p.x, &p.dresidual, &p.dx}, p.axis),
        dy(p.dy.as<const T>()),
        x(p.x.as<const T>()),
        dresidual(p.dresidual.as<const T>()),
        dx(p.dx.as<T>()),
        weight(p.weight),
        mean(p.mean),
        rstd(p.rstd),
        dweight(p.dweight),
        dbias(p.dbias),
        weight_offset(static_cast<Acc>(p.weight_offset)),
        rms(p.rms) {}

  // dy weight, of an element dy at column i.
  __device__ Acc g(T dy, int64_t i) const {
    const Acc d = static_cast<Acc>(dy);
    return weight ? d * (weight.load(i) + weight_offset) : d;
  }
};

// ---- Rows walked -------------------------------------------------------------------------------

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads) row_norm_backward_kernel(const Args<T> args) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  const int64_t n = args.elements.row.numel;
  for (int64_t row = team.row; row < args.elements.rows.numel; row += team.row_step) {
    int64_t first[4], at[4];
    args.elements.rows.offsets(row, first);
    const Acc mean = args.mean.load_or(row, 0), rstd = args.rstd.load(row);
    Acc shift = 0, along = 0;
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const Acc g = args.g(args.dy[at[0]], i);
      along += g * ((static_cast<Acc>(args.x[at[1]]) - mean) * rstd);
      shift += g;
    }
    along = team.reduce(along, Sum{}, Acc(0)) / Acc(n);
    shift = args.rms ? Acc(0) : team.reduce(shift, Sum{}, Acc(0)) / Acc(n);
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const Acc g = args.g(args.dy[at[0]], i);
      const Acc xhat = (static_cast<Acc>(args.x[at[1]]) - mean) * rstd;
      Acc v = rstd * (g - shift - xhat * along);
      if (args.dresidual) v += static_cast<Acc>(args.dresidual[at[2]]);
      args.dx[at[3]] = static_cast<T>(v);
    }
  }
}

// The column reduction: element i of the row is the column, the row is the position.
template <class T>
struct WeightSums {
  using Acc = Accumulator<T>;
  Args<T> args;

  __device__ Sums<Acc, 2> load(int64_t i, int64_t row) const {
    int64_t first[4], at[4];
    args.elements.rows.offsets(row, first);
    args.elements.offsets(first, i, at);
    const Acc dy = static_cast<Acc>(args.dy[at[0]]), x = static_cast<Acc>(args.x[at[1]]);
    return {{dy * ((x - args.mean.load_or(row, 0)) * args.rstd.load(row)), dy}};
  }
  __device__ void finish(int64_t i, const Sums<Acc, 2>& sums) const {
    if (args.dweight) args.dweight.store(i, sums.v[0]);
    if (args.dbias) args.dbias.store(i, sums.v[1]);
  }
};

// ---- Rows by teams -----------------------------------------------------------------------------

constexpr int kResident = 132 * kMaxTeamThreads;  // threads of an H200 with 64 registers each
constexpr int kStripThreads = 256;                // of a block that has a strip of the columns

// A thread has one piece: the sums of so many columns stay in its registers.
template <class T>
using OnePiece = RowPieces<T, 1>;

struct Aligns {
  int dy, x, dresidual, dx;
};

// What a thread keeps from row to row: the columns' weights and sums. Products that are added are
// fma by name: kernels for rows anywhere and for plain ones must round alike.
template <class T>
struct OwnColumns {
  using Acc = Accumulator<T>;
  Acc weight[kPiece<T>], of_weight[kPiece<T>] = {}, of_bias[kPiece<T>] = {};

  // Those of a team whose first column is `begin`, of n.
  __device__ __forceinline__ OwnColumns(const RowParameter<T>& all, Acc offset, int begin, int n,
                                        const RowTeam<false>& team) {
    all.load(begin + OnePiece<T>::place(team, 0), n, 1, weight);
#pragma unroll
    for (int k = 0; k < kPiece<T>; ++k) weight[k] += offset;
  }
  // Adds a row's elements. Their part of the sums of g * xhat and g is the result.
  __device__ __forceinline__ Pair<Acc> add(const OnePiece<T>& dy, const OnePiece<T>& x, Acc mean,
                                           Acc rstd) {
    Pair<Acc> sums{0, 0};
#pragma unroll
    for (int k = 0; k < kPiece<T>; ++k) {
      const Acc d = static_cast<Acc>(dy.get(k)), xhat = (static_cast<Acc>(x.get(k)) - mean) * rstd;
      const Acc g = d * weight[k];
      of_weight[k] = fma(d, xhat, of_weight[k]), of_bias[k] += d;
      sums.a = fma(g, xhat, sums.a), sums.b += g;
    }
    return sums;
  }
  // dx in place of x, of a row whose averages of g * xhat and g are known.
  __device__ __forceinline__ void gradient(const OnePiece<T>& dy, OnePiece<T>& x,
                                           const OnePiece<T>& dresidual, Acc mean, Acc rstd,
                                           Pair<Acc> average) const {
    const Acc along = rstd * average.a, shift = rstd * average.b;
    x.assign([&](T v, int k) {
      const Acc xhat = (static_cast<Acc>(v) - mean) * rstd;
      const Acc g = static_cast<Acc>(dy.get(k)) * weight[k];
      return fma(g, rstd, -fma(xhat, along, shift)) + static_cast<Acc>(dresidual.get(k));
    });
  }
  // Of the block's teams, to a row of n sums.
  __device__ __forceinline__ void store(const RowTeam<false>& team, int begin, int n,
                                        Sums<Acc, 2>* sums) const {
#pragma unroll
    for (int k = 0; k < kPiece<T>; ++k) {
      const Pair<Acc> all = team.sum_teams(Pair<Acc>{of_weight[k], of_bias[k]});
      const int column = begin + OnePiece<T>::place(team, k);
      if (column < n && static_cast<int>(threadIdx.x) < team.size) sums[column] = {{all.a, all.b}};
    }
  }
};

// The mean and the reciprocal deviation of a row, zeros behind the last one.
template <class T>
struct Statistics {
  Accumulator<T> mean, rstd;

  __device__ __forceinline__ Statistics(const Args<T>& args, int64_t row) {
    const bool there = row < args.elements.rows.numel;
    mean = there && args.mean ? static_cast<const Accumulator<T>*>(args.mean.data)[row] : 0;
    rstd = there ? static_cast<const Accumulator<T>*>(args.rstd.data)[row] : 0;
  }
};

// The next row of dy, x and, of plain rows, dresidual on its way to shared memory, by aligned 16
// bytes. Of plain rows each thread loads and reads its own pieces, and there is nothing to
// synchronise. Of rows anywhere (kAny) a piece is cut out of a thread's 16 bytes and the next one's,
// which all threads of the block must have waited for.
template <class T, bool kAny>
struct NextRow {
#if defined(__CUDACC__)
  uint4* slots;  // [tensor][turn][team][thread, and one more of kAny]
  int rank, size, pitch;

  __device__ explicit NextRow(const RowTeam<false>& team) : rank(team.rank), size(team.size) {
    extern __shared__ uint4 shared_slots[];
    const int shift = __popc(size - 1);  // size is 1 << shift
    pitch = blockDim.x + (kAny ? blockDim.x >> shift : 0);
    slots = shared_slots + threadIdx.x + (kAny ? threadIdx.x >> shift : 0);
  }
  static size_t bytes(int threads, int team, int tensors) {
    return sizeof(uint4) * 2 * tensors * (threads + (kAny ? threads / team : 0));
  }
  // Of the first n elements at `row`, or zeros. Where 16 bytes end behind `end`, where the tensor does,
  // elements one by one: that takes the time of a load.
  __device__ __forceinline__ void load(int turn, int tensor, const T* row, int n,
                                       const T* end) const {
    uint4* slot = slots + (2 * tensor + turn) * pitch;
    const int shift = kAny ? shift_of(row) : 0, bytes = n * static_cast<int>(sizeof(T));
    const char* aligned = reinterpret_cast<const char*>(row) - shift;
    const auto copy = [&](int number) {
      const int at = number * 16, left = bytes + shift - at;
      uint4* to = slot + number - rank;
      const char* from16 = aligned + at;
      if (kAny && left > 0 && left < 16 && from16 + 16 > reinterpret_cast<const char*>(end)) {
        const T* from = reinterpret_cast<const T*>(from16);
        Piece<T> piece{};
#pragma unroll
        for (int e = 0; e < kPiece<T>; ++e) {
          if (e * static_cast<int>(sizeof(T)) < left) piece.set(e, from[e]);
        }
        *to = make_uint4(piece.word[0], piece.word[1], piece.word[2], piece.word[3]);
      } else {
        cp_async<16>(to, left > 0 ? from16 : aligned, left <= 0 ? 0 : left < 16 ? left : 16);
      }
    };
    copy(rank);
    if (kAny && rank == 0) copy(size);
  }
  // The thread's piece of the row at `row`.
  __device__ __forceinline__ OnePiece<T> read(int turn, int tensor, const T* row) const {
    const uint4* slot = slots + (2 * tensor + turn) * pitch;
    const uint4 w = slot[0];
    OnePiece<T> piece{{{{w.x, w.y, w.z, w.w}}}};
    if constexpr (kAny) {
      const uint4 v = slot[1];
      const uint32_t low[4] = {w.x, w.y, w.z, w.w}, high[4] = {v.x, v.y, v.z, v.w};
      extract(low, high, shift_of(row), piece.piece[0].word);
    }
    return piece;
  }
#endif
};

// share: 1 / n. partial: a row of sums for each block, or nullptr. kAny: rows at any strides and
// addresses, loaded when their turn comes.
template <class T, bool kAny>
__global__ void __launch_bounds__(kMaxTeamThreads)
    row_norm_backward_registers_kernel(const Args<T> args, const RowParameter<T> weight,
                                       Accumulator<T> share, int team_size, Aligns align,
                                       const T* dy_end, const T* x_end,
                                       Sums<Accumulator<T>, 2>* partial) {
  using Acc = Accumulator<T>;
  RowTeam<false> team(team_size);
  const int n = static_cast<int>(args.elements.row.numel);
  const int64_t rows = args.elements.rows.numel, place = team.row - team.first;
  OwnColumns<T> columns(weight, args.weight_offset, 0, n, team);
  Statistics<T> following(args, team.row);
  int turn = 0;
#if defined(__CUDACC__)
  const NextRow<T, kAny> next(team);
  const auto load_next = [&](int64_t row, int at_turn) {
    const int elements = row < rows ? n : 0;
    int64_t at[4];
    row_offsets<!kAny>(args.elements.rows, row < rows ? row : 0, at);
    next.load(at_turn, 0, args.dy + at[0], elements, dy_end);
    next.load(at_turn, 1, args.x + at[1], elements, x_end);
    if (!kAny && args.dresidual) next.load(at_turn, 2, args.dresidual + at[2], elements, nullptr);
    cp_async_commit();
  };
  load_next(team.row, 0);
#endif
  // As many turns for all threads of a block.
  for (int64_t first = team.first; first < rows; first += team.row_step, turn ^= 1) {
    const int64_t row = first + place;
    const int elements = row < rows ? n : 0;
    const Statistics<T> of = following;
    int64_t at[4];
    row_offsets<!kAny>(args.elements.rows, row < rows ? row : 0, at);
    OnePiece<T> dy, x, dresidual;
#if defined(__CUDACC__)
    load_next(row + team.row_step, turn ^ 1);
    cp_async_wait<1>();
    if (kAny) __syncthreads();
    dy = next.read(turn, 0, args.dy + at[0]), x = next.read(turn, 1, args.x + at[1]);
#else
    dy.load(args.dy + at[0], elements, team, align.dy, T(0.0f));
    x.load(args.x + at[1], elements, team, align.x, T(0.0f));
#endif
    following = Statistics<T>(args, row + team.row_step);
    Pair<Acc> sums = columns.add(dy, x, of.mean, of.rstd);
    if constexpr (kAny) dy.forget(), x.forget();
    sums = team.reduce(sums, Sum{}, Pair<Acc>{0, 0});
    const Pair<Acc> average{sums.a * share, args.rms ? Acc(0) : sums.b * share};
    if constexpr (kAny) {
      dresidual.template load<true>(args.dresidual + at[2], args.dresidual ? elements : 0, team,
                                    align.dresidual, T(0.0f));
    } else {
#if defined(__CUDACC__)
      dresidual = args.dresidual ? next.read(turn, 2, nullptr) : OnePiece<T>{};
#endif
    }
    columns.gradient(dy, x, dresidual, of.mean, of.rstd, average);
    x.template store<!kAny, true>(args.dx + at[3], elements, team, align.dx);
  }
  if (partial) columns.store(team, 0, n, partial + int64_t{blockIdx.x} * n);
}

// ---- Rows in strips ----------------------------------------------------------------------------

// Of each row the averages of g * xhat and g.
template <class T, bool kAny>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<T>)
    row_norm_averages_kernel(const Args<T> args, const RowParameter<T> weight, Accumulator<T> share,
                             Aligns align, Pair<Accumulator<T>>* averages) {
  using Acc = Accumulator<T>;
  using Chunk = RowPieces<T, 2>;
  constexpr int kWidth = kRowThreads * Chunk::kElements;
  RowTeam<false> team(kRowThreads);
  const int n = static_cast<int>(args.elements.row.numel);
  int64_t at[4];
  row_offsets<!kAny>(args.elements.rows, team.row, at);
  const Statistics<T> of(args, team.row);
  Pair<Acc> sums{0, 0};
  for (int begin = 0; begin < n; begin += kWidth) {
    const int width = n - begin < kWidth ? n - begin : kWidth;
    Chunk dy, x;
    dy.template load<true, !kAny>(args.dy + at[0] + begin, width, team, align.dy, T(0.0f));
    x.template load<true, !kAny>(args.x + at[1] + begin, width, team, align.x, T(0.0f));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Acc w[kPiece<T>];
      weight.load(begin + x.place(team, i * kPiece<T>), n, 1, w);
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        const int k = i * kPiece<T> + e;
        const Acc g = static_cast<Acc>(dy.get(k)) * (w[e] + args.weight_offset);
        const Acc xhat = (static_cast<Acc>(x.get(k)) - of.mean) * of.rstd;
        sums.a = fma(g, xhat, sums.a), sums.b += g;
      }
    }
  }
  sums = team.reduce(sums, Sum{}, Pair<Acc>{0, 0});
  if (team.rank == 0) averages[team.row] = {sums.a * share, args.rms ? Acc(0) : sums.b * share};
}

// Blocks go down their strip of the columns, by pairs of rows. sets: blocks of each strip.
template <class T, bool kAny>
__global__ void __launch_bounds__(kStripThreads, kResident / 132 / kStripThreads)
    row_norm_strips_kernel(const Args<T> args, const RowParameter<T> weight, int strips, int sets,
                           Aligns align, const Pair<Accumulator<T>>* averages,
                           Sums<Accumulator<T>, 2>* partial) {
  using Acc = Accumulator<T>;
  constexpr int kWidth = kStripThreads * kPiece<T>;
  constexpr int kTogether = kAny ? 1 : 2;  // rows whose loads are on their way at once
  RowTeam<false> team(kStripThreads);
  const int n = static_cast<int>(args.elements.row.numel);
  const int set = blockIdx.x / strips, begin = blockIdx.x % strips * kWidth;
  const int width = n - begin < kWidth ? n - begin : kWidth;
  const int64_t rows = args.elements.rows.numel;
  OwnColumns<T> columns(weight, args.weight_offset, begin, n, team);
  const auto take_rows = [&](int64_t row) {
    OnePiece<T> dy[kTogether], x[kTogether], dresidual[kTogether];
    int64_t at[kTogether][4];
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      const int elements = row + r < rows ? width : 0;
      row_offsets<!kAny>(args.elements.rows, row + r < rows ? row + r : 0, at[r]);
      const auto load = [&](OnePiece<T>& piece, const T* from, int64_t place, int known) {
        piece.template load<true, !kAny>(from + place + begin, from ? elements : 0, team, known,
                                         T(0.0f));
      };
      load(dy[r], args.dy, at[r][0], align.dy), load(x[r], args.x, at[r][1], align.x);
      load(dresidual[r], args.dresidual, at[r][2], align.dresidual);
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      const int elements = row + r < rows ? width : 0;
      const Statistics<T> of(args, row + r);
      const Pair<Acc> average = elements ? averages[row + r] : Pair<Acc>{0, 0};
      columns.add(dy[r], x[r], of.mean, of.rstd);
      columns.gradient(dy[r], x[r], dresidual[r], of.mean, of.rstd, average);
      x[r].template store<!kAny>(args.dx + at[r][3] + begin, elements, team, align.dx);
    }
  };
  for (int64_t pair = set; 2 * pair < rows; pair += sets) {
#pragma unroll 1
    for (int r = 0; r < 2; r += kTogether) take_rows(2 * pair + r);
  }
  if (partial) columns.store(team, begin, n, partial + int64_t{set} * n);
}

// ---- Launch ------------------------------------------------------------------------------------

// How the rows are shared out: by the shape alone.
struct BackwardPlan {
  int team = 1, threads;         // of a row, and of a block
  int64_t strips = 0;            // of the columns; 0: teams have whole rows
  int64_t partials = 0, blocks;  // rows of sums, and blocks of the grid

  explicit BackwardPlan(const RowNormBackward& p) {
    const int64_t rows = rows_of(p.x, p.axis), n = columns_of(p.x, p.axis);
    const int64_t pieces = ceil_div(n, int64_t{16} / static_cast<int>(dtype_size(p.x.dtype)));
    while (team < pieces && team < kMaxTeamThreads) team *= 2;
    if (team < pieces) {
      threads = kStripThreads;
      strips = ceil_div(pieces, int64_t{threads});
      partials = std::clamp<int64_t>(kResident / threads / strips, 1, ceil_div(rows, 2));
      blocks = partials * strips;
      return;
    }
    // Blocks of few threads for few rows, so that all multiprocessors have some.
    threads = kMaxTeamThreads;
    while (threads > std::max(team, 128) && rows * team < kResident / kMaxTeamThreads * threads) {
      threads /= 2;
    }
    partials = blocks = std::clamp<int64_t>(ceil_div(rows * team, threads), 1, kResident / threads);
  }
};

const char* row_norm_not_in_registers(const RowNormBackward& p) {
  for (const Tensor* t : {&p.dy, &p.x, &p.dresidual, &p.dx}) {
    if (!is_row(*t, *t ? p.axis : 0)) return kStrided;
  }
  if (!is_row(p.weight)) return kParameters;
  if (!is_row(p.mean) || !is_row(p.rstd)) {
    return "mean or rstd does not have neighbouring elements";
  }
  if (columns_of(p.x, p.axis) > INT32_MAX / 2 || rows_of(p.x, p.axis) > INT32_MAX) {
    return "too many rows or columns";
  }
  return rows_of(p.x, p.axis) == 0 ? "there are no rows" : nullptr;
}

#if defined(__CUDACC__)
bool is_plain(const RowNormBackward& p) {
  // Three tensors of 1024 threads do not fit the shared memory of these.
  const int device = compute_capability();
  if (p.dresidual && (device == 86 || device == 89 || device >= 120)) return false;
  return are_plain({&p.dy, &p.x, &p.dresidual, &p.dx}, p.axis);
}
#endif

ColumnTiles tiles_of(const RowNormBackward& p) {
  return ColumnTiles(rows_of(p.x, p.axis), columns_of(p.x, p.axis), true);
}

template <class T, bool kAny>
void launch_registers(const RowNormBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Args<T> args(p);
  const auto& rows = args.elements.rows;
  const int64_t n = args.elements.row.numel;
  if (n == 0) return;
  const BackwardPlan plan(p);
  const Aligns align{row_alignment(p.dy.data, rows, 0, sizeof(T)),
                     row_alignment(p.x.data, rows, 1, sizeof(T)),
                     row_alignment(p.dresidual.data, rows, 2, sizeof(T)),
                     row_alignment(p.dx.data, rows, 3, sizeof(T))};
  const RowParameter<T> weight(args.weight);
  const Acc share = 1 / static_cast<Acc>(n);
  const bool sums = args.dweight || args.dbias;
  auto* partial = static_cast<Sums<Acc, 2>*>(sums ? launch.workspace : nullptr);
  if (plan.strips) {
    auto* averages = static_cast<Pair<Acc>*>(launch.workspace) + (sums ? plan.partials * n : 0);
    launch_kernel(row_norm_averages_kernel<T, kAny>, static_cast<unsigned>(rows.numel), kRowThreads,
                  0, launch.stream, args, weight, share, align, averages);
    launch_kernel(row_norm_strips_kernel<T, kAny>, static_cast<unsigned>(plan.blocks), plan.threads,
                  0, launch.stream, args, weight, static_cast<int>(plan.strips),
                  static_cast<int>(plan.partials), align, averages, partial);
  } else {
    size_t shared_bytes = 0;
#if defined(__CUDACC__)
    const int tensors = !kAny && args.dresidual ? 3 : 2;
    shared_bytes = NextRow<T, kAny>::bytes(plan.threads, plan.team, tensors);
#endif
    launch_kernel(row_norm_backward_registers_kernel<T, kAny>, static_cast<unsigned>(plan.blocks),
                  plan.threads, shared_bytes, launch.stream, args, weight, share, plan.team, align,
                  end_of_rows(args.dy, args.elements.rows, 0, n),
                  end_of_rows(args.x, args.elements.rows, 1, n), partial);
  }
  if (sums) finish_columns(WeightSums<T>{args}, plan.partials, n, partial, launch.stream);
}

template <class T>
void launch_backward_registers(const RowNormBackward& p, const Launch& launch) {
#if defined(__CUDACC__)
  if constexpr (sizeof(T) < 8) {
    if (is_plain(p)) return launch_registers<T, false>(p, launch);
  }
#endif
  launch_registers<T, true>(p, launch);
}

template <class T>
void launch_backward(const RowNormBackward& p, const Launch& launch) {
  const Args<T> args(p);
  if (args.dweight || args.dbias) {
    reduce_columns(WeightSums<T>{args}, tiles_of(p),
                   static_cast<Sums<Accumulator<T>, 2>*>(launch.workspace), launch.stream);
  }
  const RowConfig config = pick_rows(args.elements.row.numel, true);
  const int grid = grid_for(config.blocks(args.elements.rows.numel), 1, 16);
  dispatch_row_group(config.group, [&]<Group kGroup>() {
    launch_kernel(row_norm_backward_kernel<T, kGroup>, grid, config.threads, 0, launch.stream,
                  args);
  });
}

size_t backward_workspace(const RowNormBackward& p) {
  if (!p.dweight && !p.dbias) return 0;
  return 2 * tiles_of(p).partials() * dtype_size(accumulator_of(p.x.dtype));
}

// Rows of sums, then the averages of rows.
size_t registers_workspace(const RowNormBackward& p) {
  const BackwardPlan plan(p);
  const int64_t sums = p.dweight || p.dbias ? plan.partials * columns_of(p.x, p.axis) : 0;
  const int64_t averages = plan.strips ? rows_of(p.x, p.axis) : 0;
  return static_cast<size_t>(2 * (sums + averages)) * dtype_size(accumulator_of(p.x.dtype));
}

constexpr Impl<RowNormBackward> kBackward[] = {
    {"registers", row_norm_not_in_registers, registers_workspace,
     [](const RowNormBackward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward_registers<T>(p, launch); });
     }},
    {"rows_and_columns", supports_all, backward_workspace,
     [](const RowNormBackward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<RowNormBackward> gpu_impls<RowNormBackward>() {
  return kBackward;
}

}  // namespace dlkern
