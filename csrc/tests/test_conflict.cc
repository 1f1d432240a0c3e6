// Stamps, splits, bits and parts against sets and loops; whole lanes and pieces of them; threads.
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "core/conflict.h"
#include "tests/check.h"
#include "tests/naive.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test

namespace {

const demb::SerialExecutor kSerial;

// vector<bool> has no data(); exactly as long as it must be, for the address sanitizer.
struct Marks {
  explicit Marks(size_t count) : values(new bool[count]()), count(count) {}
  bool operator==(const Marks& other) const {
    return count == other.count && std::equal(values.get(), values.get() + count, other.values.get());
  }
  std::unique_ptr<bool[]> values;
  size_t count;
};

Marks random_marks(Random& random, size_t count, int64_t one_in) {
  Marks marks(count);
  for (size_t i = 0; i < count; ++i) marks.values[i] = one_in > 0 && below(random, one_in) == 0;
  return marks;
}

struct Asked {
  std::vector<int64_t> rows, counts;
  demb::WireRows wire;
  std::vector<std::set<int64_t>> by_lane;

  Asked(Random& random, const std::vector<int64_t>& blocks, int64_t sources, int64_t most) : by_lane(blocks.size()) {
    const auto lanes = static_cast<int64_t>(blocks.size());
    for (int64_t piece = 0; piece < sources * lanes; ++piece) {
      counts.push_back(below(random, 4) == 0 ? 0 : below(random, most));
      for (int64_t i = 0; i < counts.back(); ++i) {
        rows.push_back(below(random, blocks[static_cast<size_t>(piece % lanes)]));
        by_lane[static_cast<size_t>(piece % lanes)].insert(rows.back());
      }
    }
    wire = {rows.data(), counts.data(), sources, lanes};
  }
  Asked(const Asked&) = delete;

  template <typename Visit>
  void for_rows(Visit visit) const {
    size_t at = 0;
    for (size_t piece = 0; piece < counts.size(); ++piece) {
      for (int64_t i = 0; i < counts[piece]; ++i, ++at) visit(at, piece % by_lane.size());
    }
  }
};

struct StampData {
  std::vector<std::vector<int32_t>> values;
  std::vector<demb::Stamps> stamps;
  explicit StampData(const std::vector<int64_t>& blocks) {
    for (int64_t rows : blocks) values.emplace_back(static_cast<size_t>(rows), -5);
    for (auto& own : values) stamps.push_back({own.data(), static_cast<int64_t>(own.size())});
  }
};

void check_batches(Random& random, const std::vector<int64_t>& blocks, int64_t sources, int64_t most, int64_t first,
                   const demb::Executor& executor) {
  StampData data(blocks), serial(blocks);
  auto before = std::make_unique<Asked>(random, blocks, sources, 1);
  for (int64_t batch = first; batch < first + 3; ++batch) {
    auto now = std::make_unique<Asked>(random, blocks, sources, most);
    Marks forward(now->rows.size()), backward(before->rows.size()), again(forward.count), again_back(backward.count);
    demb::announce(data.stamps.data(), batch, now->wire, forward.values.get(), before->wire, backward.values.get(), executor);
    demb::announce(serial.stamps.data(), batch, now->wire, again.values.get(), before->wire, again_back.values.get(), kSerial);
    CHECK(forward == again && backward == again_back);
    CHECK(data.values == serial.values);
    now->for_rows([&](size_t i, size_t lane) {
      CHECK(forward.values[i] == (before->by_lane[lane].count(now->rows[i]) > 0), "row %zu lane %zu", i, lane);
      CHECK(data.values[lane][static_cast<size_t>(now->rows[i])] == static_cast<int32_t>(static_cast<uint32_t>(batch)));
    });
    before->for_rows([&](size_t i, size_t lane) {
      CHECK(backward.values[i] == (now->by_lane[lane].count(before->rows[i]) > 0), "row %zu lane %zu", i, lane);
    });
    before = std::move(now);
  }
}

}  // namespace

TEST(announced_rows_are_those_that_both_batches_have) {
  Random random(41);
  for (int variant = 0; variant < 40; ++variant) {
    context() = "variant " + std::to_string(variant);
    std::vector<int64_t> blocks;
    for (int64_t lanes = below(random, 5); lanes > 0; --lanes) blocks.push_back(1 + below(random, 60));
    const ThreadExecutor threaded(1 + variant % 3);
    const int64_t first = variant % 2 == 0 ? 1 : (int64_t{1} << 31) - 1;
    check_batches(random, blocks, below(random, 4), 30, first, threaded);
  }
}

TEST(long_lanes_are_announced_in_pieces) {
  Random random(42);
  const ThreadExecutor threaded(3);
  check_batches(random, {5000, 3}, 3, 20000, 1, threaded);
  check_batches(random, {900, 800, 900, 800, 900, 800, 900, 800}, 2, 5000, int64_t{1} << 32, threaded);
}

TEST(rows_outside_of_their_lanes_block_are_found) {
  std::vector<int64_t> rows = {4, 0, 8, 4, 0}, counts = {1, 2, 1, 1};
  StampData data({5, 9});
  const demb::WireRows asked{rows.data(), counts.data(), 2, 2};
  int64_t lane;
  CHECK(demb::first_outside(data.stamps.data(), asked, &lane) == -1);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t wrong : {int64_t{-1}, int64_t{9}, int64_t{1} << 40}) {
      std::swap(rows[i], wrong);
      CHECK(demb::first_outside(data.stamps.data(), asked, &lane) == static_cast<int64_t>(i));
      CHECK(lane == (i == 1 || i == 2 || i == 4));
      std::swap(rows[i], wrong);
    }
  }
  rows[0] = 5;
  CHECK(demb::first_outside(data.stamps.data(), asked, &lane) == 0 && lane == 0);
}

TEST(rows_are_split_in_their_order) {
  Random random(43);
  for (int variant = 0; variant < 60; ++variant) {
    context() = "variant " + std::to_string(variant);
    const Asked asked(random, std::vector<int64_t>(static_cast<size_t>(below(random, 4)), 99), below(random, 4), 25);
    const Marks marks = random_marks(random, asked.rows.size(), variant % 4);
    const auto marked = static_cast<size_t>(demb::count_marks(marks.values.get(), static_cast<int64_t>(marks.count)));
    std::vector<int64_t> rows[2] = {std::vector<int64_t>(marks.count - marked), std::vector<int64_t>(marked)}, want[2];
    std::vector<int64_t> counts[2] = {asked.counts, asked.counts};
    demb::split_rows(asked.wire, marks.values.get(), rows[0].data(), counts[0].data(), rows[1].data(), counts[1].data());
    for (size_t i = 0; i < marks.count; ++i) want[marks.values[i]].push_back(asked.rows[i]);
    CHECK(rows[0] == want[0] && rows[1] == want[1]);
    size_t at = 0;
    for (size_t piece = 0; piece < asked.counts.size(); ++piece) {
      int64_t own = 0;
      for (int64_t i = 0; i < asked.counts[piece]; ++i) own += marks.values[at++];
      CHECK(counts[1][piece] == own && counts[0][piece] == asked.counts[piece] - own);
    }
  }
}

TEST(marks_become_bits_and_come_back) {
  Random random(44);
  for (int variant = 0; variant < 60; ++variant) {
    context() = "variant " + std::to_string(variant);
    std::vector<int64_t> sizes[2];
    int64_t totals[2] = {}, bytes = 0;
    demb::MarkSizes of;
    of.ranks = below(random, 4);
    for (int k = 0; k < 2; ++k) {
      for (int64_t r = 0; r < of.ranks; ++r) totals[k] += sizes[k].emplace_back(below(random, variant % 2 == 0 ? 9 : 40));
    }
    of.forward = sizes[0].data();
    of.backward = sizes[1].data();
    for (int64_t r = 0; r < of.ranks; ++r) bytes += of.bytes(r);
    const Marks forward = random_marks(random, static_cast<size_t>(totals[0]), 2);
    const Marks backward = random_marks(random, static_cast<size_t>(totals[1]), 2);
    std::vector<uint8_t> packed(static_cast<size_t>(bytes), 0xff);
    demb::pack_marks(of, forward.values.get(), backward.values.get(), packed.data());
    size_t byte = 0, at[2] = {};
    for (size_t r = 0; r < static_cast<size_t>(of.ranks); ++r) {
      for (int k = 0; k < 2; ++k) {
        const Marks& marks = k == 0 ? forward : backward;
        for (int64_t i = 0; i < (sizes[k][r] + 7) / 8 * 8; ++i) {
          const bool want = i < sizes[k][r] && marks.values[at[k]++];
          CHECK(((packed[byte + static_cast<size_t>(i / 8)] >> (i % 8)) & 1) == want);
        }
        byte += static_cast<size_t>((sizes[k][r] + 7) / 8);
      }
    }
    Marks again(forward.count), again_back(backward.count);
    demb::unpack_marks(of, packed.data(), again.values.get(), again_back.values.get());
    CHECK(again == forward && again_back == backward);
    digest().add(packed);
  }
}

TEST(parts_are_taken_out_and_put_back) {
  Random random(45);
  for (int variant = 0; variant < 60; ++variant) {
    context() = "variant " + std::to_string(variant);
    std::vector<int64_t> rows, widths;
    std::vector<float> whole, want;
    int64_t total = 0;
    for (int64_t lane = below(random, 5); lane > 0; --lane) {
      rows.push_back(below(random, 3) == 0 ? 0 : below(random, variant % 2 == 0 ? 20 : 3000));
      widths.push_back(std::vector<int64_t>{1, 3, 8, 16, 20, 32, 64, 130}[static_cast<size_t>(below(random, 8))]);
      total += rows.back();
    }
    const Marks marks = random_marks(random, static_cast<size_t>(total), variant % 3);
    const demb::MarkedLanes lanes{marks.values.get(), variant % 4 < 2, rows.data(), widths.data(),
                                  static_cast<int64_t>(rows.size())};
    std::vector<int64_t> floats(rows.size()), want_floats(rows.size());
    std::vector<float> other;
    size_t row = 0;
    for (size_t l = 0; l < rows.size(); ++l) {
      for (int64_t r = 0; r < rows[l]; ++r, ++row) {
        const bool wanted = marks.values[row] == lanes.wanted;
        want_floats[l] += wanted ? widths[l] : 0;
        for (int64_t d = 0; d < widths[l]; ++d) {
          whole.push_back(uniform(random));
          other.push_back(wanted ? whole.back() : 7.0f);
          if (wanted) want.push_back(whole.back());
        }
      }
    }
    demb::part_floats(lanes, floats.data());
    CHECK(floats == want_floats);
    for (int threads : {1, 3}) {
      const ThreadExecutor executor(threads);
      std::vector<float> part(want.size()), back(whole.size(), 7.0f);
      demb::compact(lanes, whole.data(), part.data(), executor);
      CHECK(same_bits(part, want), "threads %d", threads);
      demb::spread(lanes, part.data(), back.data(), executor);
      CHECK(same_bits(back, other), "threads %d", threads);
    }
  }
}
