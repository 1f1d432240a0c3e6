#include "core/occurrences.h"

#include <algorithm>

namespace demb {
namespace {

constexpr int64_t kIdsPerTask = int64_t{1} << 14;
constexpr int64_t kLimit = int64_t{0xffffffff};

// Bags [first, last) of a source, whose ids stand from `id_offset` on in the table's pairs.
struct Piece {
  const GradientSource* source;
  int64_t first, last;
  int64_t id_offset;   // of the source
  int64_t item_offset; // of the source
};

std::vector<Piece> cut(const TableGradient& table, bool by_id) {
  std::vector<Piece> pieces;
  int64_t ids = 0, items = 0;
  for (int64_t s = 0; s < table.num_sources; ++s) {
    const Bags& bags = table.sources[s].bags;
    const int64_t step = bags.bags_of(kIdsPerTask);
    for (int64_t b = 0; b < bags.num_bags; b += step) {
      pieces.push_back({&table.sources[s], b, std::min(b + step, bags.num_bags), ids, items});
    }
    ids += bags.num_ids;
    items += by_id ? bags.num_ids : bags.num_bags;
  }
  return pieces;
}

template <typename Id>
void write_pairs(const Piece& piece, int64_t num_rows, InvalidIds policy, bool by_id, Pair* pairs) {
  const Bags& bags = piece.source->bags;
  const Id* ids = static_cast<const Id*>(bags.ids);
  Pair* to = pairs + piece.id_offset;
  for (int64_t b = piece.first; b < piece.last; ++b) {
    for (int64_t i = bags.begin(b); i < bags.begin(b + 1); ++i) {
      int64_t row = ids[i];
      if (static_cast<uint64_t>(row) >= static_cast<uint64_t>(num_rows)) {
        // num_rows sorts behind every row; what is left out is cut off there.
        row = policy != InvalidIds::kClip ? num_rows : (row < 0 ? 0 : num_rows - 1);
      }
      to[i] = {static_cast<uint32_t>(row), static_cast<uint32_t>(piece.item_offset + (by_id ? i : b))};
    }
  }
}

void write_rows(const Piece& piece, bool by_id, const float** rows) {
  const GradientSource& source = *piece.source;
  for (int64_t b = piece.first; b < piece.last; ++b) {
    const float* row = source.grads + b * source.grad_stride;
    if (!by_id) {
      rows[piece.item_offset + b] = row;
      continue;
    }
    for (int64_t i = source.bags.begin(b); i < source.bags.begin(b + 1); ++i) rows[piece.item_offset + i] = row;
  }
}

void write_factors(const Piece& piece, int64_t num_rows, InvalidIds policy, bool by_id, float* factors) {
  const Bags& bags = piece.source->bags;
  for (int64_t b = piece.first; b < piece.last; ++b) {
    float scale;
    bag_scales(bags, num_rows, policy, b, b + 1, &scale);
    if (!by_id) {
      factors[piece.item_offset + b] = scale;
      continue;
    }
    for (int64_t i = bags.begin(b); i < bags.begin(b + 1); ++i) {
      factors[piece.item_offset + i] = bags.weights != nullptr ? scale * bags.weights[i] : scale;
    }
  }
}

// How a table's items become gradients: by bag unless weights differ inside bags, by arrays only where it takes them.
struct Form {
  bool by_id = false;
  bool one_source = true;
  bool one_factor = true;
  float factor = 1.0f;
};

Form form_of(const TableGradient& table, InvalidIds policy) {
  Form form;
  form.one_source = table.num_sources == 1;
  for (int64_t s = 0; s < table.num_sources; ++s) {
    const Bags& bags = table.sources[s].bags;
    float factor = 1.0f;
    form.by_id |= bags.weights != nullptr;
    form.one_factor &= bags.weights == nullptr && constant_scale(bags, policy, &factor);
    form.one_factor &= s == 0 || factor == form.factor;
    form.factor = factor;
  }
  return form;
}

struct Room {
  Pair* pairs;
  const float** rows;
  float* factors;
  Form form;
};

}  // namespace

bool OccurrenceSorter::supports(const TableGradient& table) {
  int64_t items = table.num_ids();
  for (int64_t s = 0; s < table.num_sources; ++s) items = std::max(items, table.sources[s].bags.num_bags);
  return table.num_rows < kLimit && items < kLimit;
}

void OccurrenceSorter::sort(const TableGradient* tables, int64_t num_tables, InvalidIds policy,
                            const Executor& executor) {
  occurrences_.assign(static_cast<size_t>(num_tables), Occurrences());
  std::vector<SortJob> jobs(static_cast<size_t>(num_tables));
  std::vector<Room> rooms;
  for (int64_t t = 0; t < num_tables; ++t) {
    const int64_t ids = tables[t].num_ids();
    int64_t items = 0;
    Room room{nullptr, nullptr, nullptr, form_of(tables[t], policy)};
    for (int64_t s = 0; s < tables[t].num_sources; ++s) {
      const Bags& bags = tables[t].sources[s].bags;
      items += room.form.by_id ? bags.num_ids : bags.num_bags;
    }
    pairs_.emplace_back(ids);
    room.pairs = pairs_.back().get();
    pairs_.emplace_back(ids);
    const int bits = bits_of(static_cast<uint64_t>(tables[t].num_rows));
    jobs[t] = {room.pairs, pairs_.back().get(), ids, bits, nullptr};
    if (!room.form.one_source || room.form.by_id) {
      rows_.emplace_back(items);
      room.rows = rows_.back().get();
    }
    if (!room.form.one_factor) {
      factors_.emplace_back(items);
      room.factors = factors_.back().get();
    }
    rooms.push_back(room);
  }
  struct Task {
    int64_t table;
    Piece piece;
  };
  std::vector<Task> tasks;
  for (int64_t t = 0; t < num_tables; ++t) {
    for (const Piece& piece : cut(tables[t], rooms[t].form.by_id)) tasks.push_back({t, piece});
  }
  executor.run(static_cast<int64_t>(tasks.size()), [&](int64_t k) {
    const auto& [t, piece] = tasks[k];
    const Room& room = rooms[t];
    const bool by_id = room.form.by_id;
    const auto write = piece.source->bags.ids_are_64 ? write_pairs<int64_t> : write_pairs<int32_t>;
    write(piece, tables[t].num_rows, policy, by_id, room.pairs);
    if (room.rows != nullptr) write_rows(piece, by_id, room.rows);
    if (room.factors != nullptr) write_factors(piece, tables[t].num_rows, policy, by_id, room.factors);
  });
  sort_pairs(jobs.data(), num_tables, executor);
  for (int64_t t = 0; t < num_tables; ++t) {
    Occurrences& to = occurrences_[t];
    to.pairs_ = jobs[t].sorted;
    const Pair* end = std::lower_bound(to.pairs_, to.pairs_ + jobs[t].count, tables[t].num_rows,
                                       [](const Pair& p, int64_t rows) { return p.key < rows; });
    to.count_ = end - to.pairs_;
    to.rows_ = rooms[t].rows;
    to.factors_ = rooms[t].factors;
    to.factor_ = rooms[t].form.factor;
    if (tables[t].num_sources > 0) {
      to.base_ = tables[t].sources[0].grads;
      to.stride_ = tables[t].sources[0].grad_stride;
      to.num_items_ = tables[t].sources[0].bags.num_bags;
    }
  }
}

}  // namespace demb
