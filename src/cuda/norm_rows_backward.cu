// Layer norm and RMS norm, backward.
//
//   g = dy * (weight + offset), xhat = (x - mean) * rstd, averages over the row:
//   dx = rstd * (g - avg(g) - xhat * avg(g * xhat)) + dresidual        RMS: without avg(g)
//   dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
//
// dy, x and dx once are the floor, at 16384 x 4096 of 16 bits 403 MB. A team of threads shares a row
// (prims/row_pieces.cuh). Threads keep their columns from row to row and add up dweight and dbias in
// registers, while the next rows are on their way to shared memory, where each thread has its own
// pieces; each of at most 264 blocks leaves one row of such sums in the workspace (8.7 MB at most),
// which a second kernel adds in order. The blocks' number follows from the shape alone. Rows that do
// not lie at multiples of 16 bytes are loaded when their turn comes.
//
// Rows of more than 32 KB, or at other addresses 16 KB, are cut into strips: a first kernel leaves
// the two averages of each row in the workspace, then blocks go down their strip of columns; dy and
// x are read twice. Rows at any strides are walked by one warp or one block (prims/rows.cuh), and
// the gradients of the weights are a two-stage column reduction of its own (prims/columns.cuh),
// before dx is written, since dx may be dy or x.
//
// Bound by memory. Sums in float32 (float64 for float64); a row's in an order that n and the way it
// is taken decide.
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

struct Aligns {
  int dy, x, dresidual, dx;
};

// Rows of dy, x and, where there is one, dresidual on their way to shared memory. Each thread loads
// and reads its own pieces: there is nothing to synchronise.
template <class T, int kItems>
struct RowQueue {
  int stages, tensors;
  uint4* slots;  // [stage][tensor][item][thread]

  __device__ RowQueue(int stages_, int tensors_) : stages(stages_), tensors(tensors_) {
    extern __shared__ uint4 shared_slots[];
    slots = shared_slots + threadIdx.x;
  }
  __device__ __forceinline__ uint4* slot(int stage, int tensor, int item) const {
    return slots + ((stage * tensors + tensor) * kItems + item) * static_cast<int>(blockDim.x);
  }
  // The row of n elements at `row`; zeros behind it.
  __device__ __forceinline__ void load(int stage, int tensor, const T* row, int n,
                                       const RowTeam<false>& team) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int first = RowPieces<T, kItems>::place(team, i * kPiece<T>);
#if defined(__CUDACC__)
      cp_async<16>(slot(stage, tensor, i), row + (first < n ? first : 0), first < n ? 16 : 0);
#else
      Piece<T> piece{};
      if (first < n) load_words(true, row + first, piece.word);
      store_words(slot(stage, tensor, i), piece.word);
#endif
    }
  }
  // After the loads of each stage, empty ones too.
  __device__ __forceinline__ void commit() const {
#if defined(__CUDACC__)
    cp_async_commit();
#endif
  }
  // Until all but the newest stages - 1 are there.
  __device__ __forceinline__ void wait() const {
#if defined(__CUDACC__)
    if (stages == 3) {
      cp_async_wait<2>();
    } else {
      cp_async_wait<1>();
    }
#endif
  }
  __device__ __forceinline__ Piece<T> read(int stage, int tensor, int item) const {
    const uint4 w = *slot(stage, tensor, item);
    return {{w.x, w.y, w.z, w.w}};
  }
};

// avg(g * xhat) and avg(g) of each row, for strips.
template <class T, bool kRms>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<T>)
    row_norm_averages_kernel(const Args<T> args, const RowParameter<T> weight, Accumulator<T> share,
                             Aligns align, Pair<Accumulator<T>>* averages) {
  using Acc = Accumulator<T>;
  using Pieces = RowPieces<T, 2>;
  RowTeam<false> team(kRowThreads);
  const int64_t n = args.elements.row.numel;
  for (int64_t row = team.row; row < args.elements.rows.numel; row += team.row_step) {
    int64_t at[4];
    args.elements.rows.offsets(row, at);
    const Acc mean = kRms ? Acc(0) : args.mean.load(row), rstd = args.rstd.load(row);
    Pair<Acc> sums{0, 0};
    for (int64_t begin = 0; begin < n; begin += kRowThreads * Pieces::kElements) {
      const int width = static_cast<int>(n - begin < kRowThreads * Pieces::kElements
                                             ? n - begin
                                             : kRowThreads * Pieces::kElements);
      Pieces dy, x;
      dy.load(args.dy + at[0] + begin, width, team, align.dy, T(0.0f));
      x.load(args.x + at[1] + begin, width, team, align.x, T(0.0f));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Acc w[kPiece<T>];
        weight.load(begin + x.place(team, i * kPiece<T>), n, 1, w);
#pragma unroll
        for (int e = 0; e < kPiece<T>; ++e) {
          const int k = i * kPiece<T> + e;
          const Acc g = static_cast<Acc>(dy.get(k)) * w[e];
          sums.a += g * ((static_cast<Acc>(x.get(k)) - mean) * rstd);
          if constexpr (!kRms) sums.b += g;
        }
      }
    }
    sums = team.reduce(sums, Sum{}, Pair<Acc>{0, 0});
    if (team.rank == 0) averages[row] = {sums.a * share, sums.b * share};
  }
}

// share: 1 / n. averages: of each row, where blocks have strips of columns. partial: a row of sums
// for each block, or each set of strips, or nullptr. kAny: rows at any strides and addresses.
template <class T, int kItems, bool kAny, bool kRms>
__global__ void __launch_bounds__(kRowThreads)
    row_norm_backward_registers_kernel(const Args<T> args, const RowParameter<T> weight,
                                       Accumulator<T> share, int team_size, int stages,
                                       Aligns align, const Pair<Accumulator<T>>* averages,
                                       Sums<Accumulator<T>, 2>* partial) {
  using Acc = Accumulator<T>;
  using Pieces = RowPieces<T, kItems>;
  constexpr int kCount = Pieces::kElements;
  constexpr bool kKeep = kCount <= 16;  // g and xhat stay in registers
  RowTeam<false> team(team_size);
  const int64_t n = args.elements.row.numel, rows = args.elements.rows.numel;
  const int64_t width = int64_t{team_size} * kCount, strips = averages ? ceil_div(n, width) : 1;
  const int64_t block_row = averages ? blockIdx.x / strips : team.first;
  const int64_t place = averages ? 0 : team.row - team.first;
  const int64_t step = averages ? gridDim.x / strips : team.row_step;
  const int64_t begin = averages ? blockIdx.x % strips * width : 0;
  const int columns = static_cast<int>(n - begin < width ? n - begin : width);

  Acc of_weight[kCount] = {}, of_bias[kRms ? 1 : kCount] = {};
  const RowQueue<T, kItems> queue(stages, args.dresidual ? 3 : 2);
  const auto load_stage = [&](int64_t row, int stage) {
    if (row < rows) {
      int64_t at[4];
      find_row<kAny>(args.elements.rows, row, at);
      queue.load(stage, 0, args.dy + at[0], columns, team);
      queue.load(stage, 1, args.x + at[1], columns, team);
      if (args.dresidual) queue.load(stage, 2, args.dresidual + at[2], columns, team);
    }
    queue.commit();
  };
  Acc mean = 0, rstd = 0;  // of the next row
  Pair<Acc> average{0, 0};
  const auto load_statistics = [&](int64_t row) {
    mean = kRms || row >= rows ? Acc(0) : static_cast<const Acc*>(args.mean.data)[row];
    rstd = row >= rows ? Acc(0) : static_cast<const Acc*>(args.rstd.data)[row];
    if (averages && row < rows) average = averages[row];
  };
  int stage = 0;  // of this row
  load_statistics(block_row + place);
  if constexpr (!kAny) {
    for (int s = 0; s + 1 < stages; ++s) load_stage(block_row + place + s * step, s);
  }
  // As many turns for all threads of a block.
  for (int64_t first = block_row; first < rows; first += step) {
    const int64_t row = first + place;
    const int elements = row < rows ? columns : 0;
    const Acc center = mean, scale = rstd;
    Pair<Acc> sums = average;
    int64_t at[4];
    find_row<kAny>(args.elements.rows, row < rows ? row : 0, at);
    Pieces dy, x, more;
    if constexpr (kAny) {
      dy.load(args.dy + at[0] + begin, elements, team, align.dy, T(0.0f));
      x.load(args.x + at[1] + begin, elements, team, align.x, T(0.0f));
      more.load(args.dresidual + at[2] + begin, args.dresidual ? elements : 0, team,
                align.dresidual, T(0.0f));
    } else {
      load_stage(row + (stages - 1) * step, stage == 0 ? stages - 1 : stage - 1);
      queue.wait();
    }
    load_statistics(row + step);
    // Zeros behind the last row.
    const auto piece = [&](const Pieces& loaded, int tensor, int i) {
      if constexpr (kAny) return loaded.piece[i];
      return elements > 0 ? queue.read(stage, tensor, i) : Piece<T>{};
    };
    Acc kept_g[kKeep ? kCount : 1], kept_h[kKeep ? kCount : 1];
    Pair<Acc> own{0, 0};  // of g * xhat and g
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const Piece<T> of_dy = piece(dy, 0, i), of_x = piece(x, 1, i);
      Acc w[kPiece<T>];
      weight.load(begin + x.place(team, i * kPiece<T>), n, 1, w);
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        const int k = i * kPiece<T> + e;
        const Acc d = static_cast<Acc>(of_dy.get(e));
        const Acc h = (static_cast<Acc>(of_x.get(e)) - center) * scale, g = d * w[e];
        of_weight[k] += d * h;
        own.a += g * h;
        if constexpr (!kRms) of_bias[k] += d, own.b += g;
        if constexpr (kKeep) kept_g[k] = g, kept_h[k] = h;
      }
    }
    if (!averages) {
      if constexpr (kRms) {
        sums.a = team.reduce(own.a, Sum{}, Acc(0)) * share;
      } else {
        own = team.reduce(own, Sum{}, Pair<Acc>{0, 0});
        sums = {own.a * share, own.b * share};
      }
    } else if (kAny) {  // dx may be dy, x or dresidual, of which neighbours have elements, too
      __syncthreads();
    }
    sums = {scale * sums.a, scale * sums.b};
    Pieces out;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      Piece<T> of_more{};
      if (args.dresidual) of_more = piece(more, 2, i);
      Acc w[kPiece<T>];
      Piece<T> of_dy, of_x;
      if constexpr (!kKeep) {
        of_dy = piece(dy, 0, i), of_x = piece(x, 1, i);
        weight.load(begin + x.place(team, i * kPiece<T>), n, 1, w);
      }
      out.assign(i, [&](T, int k) {
        const int e = k % kPiece<T>;
        Acc g, h;
        if constexpr (kKeep) {
          g = kept_g[k], h = kept_h[k];
        } else {
          g = static_cast<Acc>(of_dy.get(e)) * w[e];
          h = (static_cast<Acc>(of_x.get(e)) - center) * scale;
        }
        const Acc away = h * sums.a + sums.b;
        return g * scale - away + static_cast<Acc>(of_more.get(e));
      });
    }
    out.template store<kAny>(args.dx + at[3] + begin, elements, team, align.dx);
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  if (partial) {
    Sums<Acc, 2>* part = partial + (averages ? block_row : int64_t{blockIdx.x}) * n + begin;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Sums<Acc, 2> sums{
          {team.sum_teams(of_weight[k]), kRms ? Acc(0) : team.sum_teams(of_bias[kRms ? 0 : k])}};
      const int column = Pieces::place(team, k);
      if (column < columns && static_cast<int>(threadIdx.x) < team_size) part[column] = sums;
    }
  }
}

// Rows of whole pieces at multiples of 16 bytes, one stride apart.
bool is_plain(const RowNormBackward& p) {
  const auto rows = make_index<4>({&p.dy, &p.x, &p.dresidual, &p.dx}, dims_below(p.axis));
  const int size = static_cast<int>(dtype_size(p.x.dtype));
  if (rows.ndim > 1 || columns_of(p.x, p.axis) * size % 16 != 0) return false;
  const void* data[] = {p.dy.data, p.x.data, p.dresidual.data, p.dx.data};
  for (int i = 0; i < 4; ++i) {
    if (row_alignment(data[i], rows, i, size) != 16) return false;
  }
  return true;
}

// How the rows are shared out: by the shape, and by whether they are plain.
struct BackwardPlan {
  bool any;
  RowPlan team;
  int threads, stages = 1;   // of a block, which has a team or several
  int64_t strips = 0;        // of a row; 0: a team has all of it
  int64_t partials, blocks;  // rows of sums, and blocks of the grid
  size_t shared_bytes = 0;
  // Two blocks of 256 threads for each multiprocessor of an H200, or one of 512.
  static constexpr int64_t kResident = 132 * kRowThreads;

  explicit BackwardPlan(const RowNormBackward& p) : any(!is_plain(p)) {
    const int64_t rows = rows_of(p.x, p.axis), n = columns_of(p.x, p.axis);
    const int bytes = static_cast<int>(dtype_size(p.x.dtype)), tensors = p.dresidual ? 3 : 2;
    // Of 16-bit elements twice as many sums are in a piece.
    team = plan_within_block(n, 16 / bytes, bytes == 2 ? 2 : 4);
    if (!any && !team.size && bytes == 2) team = plan_within_block(n, 16 / bytes, 4);
    threads = std::max(team.threads(), kRowThreads / 2);
    if (!any && team.size) {
      const size_t stage = size_t{16} * tensors * team.items * threads;
      stages = 3 * stage <= most_shared_bytes() ? 3 : 2;
      shared_bytes = stages * stage;
      if (shared_bytes > most_shared_bytes()) team.size = 0;
    }
    if (team.size) {
      partials = std::clamp<int64_t>(ceil_div(rows * team.size, threads), 1, kResident / threads);
      blocks = partials;
    } else {
      any = true, stages = 1, shared_bytes = 0;
      team = {kRowThreads / 2, bytes == 2 ? 2 : 4};
      threads = team.size;
      strips = std::max<int64_t>(ceil_div(n, int64_t{16} / bytes * team.size * team.items), 1);
      partials = std::clamp<int64_t>(kResident / threads / strips, 1, std::max<int64_t>(rows, 1));
      blocks = partials * strips;
    }
  }
  // With as many pieces for each thread as there may be, where that is not too many for one team.
  static RowPlan plan_within_block(int64_t n, int piece, int items) {
    RowPlan plan{1, items};
    const int64_t pieces = ceil_div(n, piece);
    while (int64_t{plan.size} * items < pieces && plan.size < kRowThreads) plan.size *= 2;
    if (int64_t{plan.size} * items < pieces) plan.size = 0;
    return plan;
  }
  // Of a block, beside the static ones.
  static size_t most_shared_bytes() {
    return compute_capability() == 90 ? 200 * 1024 : compute_capability() ? 96 * 1024 : 56 * 1024;
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
  if (BackwardPlan(p).blocks > INT32_MAX) return "rows are too long";
  return nullptr;
}

ColumnTiles tiles_of(const RowNormBackward& p) {
  return ColumnTiles(rows_of(p.x, p.axis), columns_of(p.x, p.axis), true);
}

template <class T, int kItems, bool kAny>
auto backward_kernel(bool rms) {
  return rms ? row_norm_backward_registers_kernel<T, kItems, kAny, true>
             : row_norm_backward_registers_kernel<T, kItems, kAny, false>;
}
template <class T>
auto pick_backward_kernel(const BackwardPlan& plan, bool rms) {
  constexpr int kItems = sizeof(T) == 2 ? 2 : 4;
  if (plan.any) return backward_kernel<T, kItems, true>(rms);
  if constexpr (kItems == 2) {
    if (plan.team.items == 4) return backward_kernel<T, 4, false>(rms);
  }
  return backward_kernel<T, kItems, false>(rms);
}

// The workspace: rows of sums, then the averages of rows.
size_t registers_workspace(const RowNormBackward& p) {
  const BackwardPlan plan(p);
  const int64_t sums = p.dweight || p.dbias ? plan.partials * columns_of(p.x, p.axis) : 0;
  const int64_t averages = plan.strips ? rows_of(p.x, p.axis) : 0;
  return static_cast<size_t>(2 * (sums + averages)) * dtype_size(accumulator_of(p.x.dtype));
}

template <class T>
void launch_backward_registers(const RowNormBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Args<T> args(p);
  const auto& rows = args.elements.rows;
  const int64_t n = args.elements.row.numel;
  const BackwardPlan plan(p);
  const Aligns align{row_alignment(p.dy.data, rows, 0, sizeof(T)),
                     row_alignment(p.x.data, rows, 1, sizeof(T)),
                     row_alignment(p.dresidual.data, rows, 2, sizeof(T)),
                     row_alignment(p.dx.data, rows, 3, sizeof(T))};
  const RowParameter<T> weight(args.weight, p.weight_offset);
  const Acc share = 1 / static_cast<Acc>(n);
  const bool sums = args.dweight || args.dbias;
  auto* partial = static_cast<Sums<Acc, 2>*>(sums ? launch.workspace : nullptr);
  Pair<Acc>* averages = nullptr;
  if (plan.strips) {
    averages = static_cast<Pair<Acc>*>(launch.workspace) + (sums ? plan.partials * n : 0);
    launch_kernel(p.rms ? row_norm_averages_kernel<T, true> : row_norm_averages_kernel<T, false>,
                  grid_for(rows.numel, 1, 2), kRowThreads, 0, launch.stream, args, weight, share,
                  align, averages);
  }
  launch_kernel(pick_backward_kernel<T>(plan, p.rms), static_cast<unsigned>(plan.blocks),
                plan.threads, plan.shared_bytes, launch.stream, args, weight, share, plan.team.size,
                plan.stages, align, averages, partial);
  if (sums) finish_columns(WeightSums<T>{args}, plan.partials, n, partial, launch.stream);
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
