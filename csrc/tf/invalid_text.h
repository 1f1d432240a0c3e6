// Error texts of a grouped lookup: the feature, the table, the id, where it stands.
#pragma once

#include <string>
#include <vector>

#include "../core/types.h"
#include "absl/strings/str_cat.h"

namespace demb {

// The first feature with an invalid id, told. reports, bags, table_of by feature; num_rows by table.
inline std::string invalid_text(const std::vector<std::string>& features, const std::vector<std::string>& tables,
                                const std::vector<int32_t>& table_of, const std::vector<int64_t>& num_rows,
                                const std::vector<Bags>& bags, const std::vector<InvalidReport>& reports,
                                const std::vector<int64_t>& batch_sizes) {
  int64_t total = 0;
  for (const InvalidReport& r : reports) total += r.count.load();
  for (size_t f = 0; f < reports.size(); ++f) {
    if (reports[f].count.load() == 0) continue;
    const int64_t at = reports[f].first.load();
    int64_t bag = 0;
    while (bag + 1 < bags[f].num_bags && bags[f].begin(bag + 1) <= at) ++bag;
    // Without combiner every id is a bag of its own.
    if (bags[f].num_bags != batch_sizes[f]) bag = bag * batch_sizes[f] / bags[f].num_bags;
    return absl::StrCat("feature ", features[f], " (table ", tables[table_of[f]], "): id ", bags[f].id(at),
                        " is outside [0, ", num_rows[table_of[f]], ") at row ", bag,
                        " of the batch on rank 0 (invalid ids there in all: ", total, "). ");
  }
  return "";
}

inline std::string batch_sizes_text(const std::vector<std::string>& features, const std::vector<int64_t>& sizes) {
  std::string text = "all features of a call must have one batch size. Received on rank 0: ";
  for (size_t f = 0; f < features.size(); ++f) absl::StrAppend(&text, f == 0 ? "" : ", ", features[f], ": ", sizes[f]);
  return text + ". ";
}

}  // namespace demb
