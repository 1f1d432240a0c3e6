#include "core/accumulate.h"

namespace demb {
namespace {

DEMB_AVX2 void accumulate_avx2(const Occurrences& o, int64_t begin, int64_t end, int dim, V8* sum) {
  accumulate_any(o, begin, end, dim, sum);
}

void accumulate_portable(const Occurrences& o, int64_t begin, int64_t end, int dim, V8* sum) {
  accumulate_any(o, begin, end, dim, sum);
}

}  // namespace

const Accumulate kAccumulateAvx2 = accumulate_avx2;
const Accumulate kAccumulatePortable = accumulate_portable;

}  // namespace demb
