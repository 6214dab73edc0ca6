// Every format of weights, each in a namespace of its own.
#pragma once
#include "blocks.cuh"
#include "format/codebook.cuh"
#include "format/k_head.cuh"
#include "format/signed.cuh"
#include "format/small_float.cuh"

namespace f32 {
#include "format/f32.cuh"
}
namespace f16 {
#include "format/f16.cuh"
}
namespace bf16 {
#include "format/bf16.cuh"
}
namespace q4_0 {
#include "format/q4_0.cuh"
}
namespace q4_1 {
#include "format/q4_1.cuh"
}
namespace q5_0 {
#include "format/q5_0.cuh"
}
namespace q5_1 {
#include "format/q5_1.cuh"
}
namespace q8_0 {
#include "format/q8_0.cuh"
}
namespace q2_k {
#include "format/q2_k.cuh"
}
namespace q3_k {
#include "format/q3_k.cuh"
}
namespace q4_k {
#include "format/q4_k.cuh"
}
namespace q5_k {
#include "format/q5_k.cuh"
}
namespace q6_k {
#include "format/q6_k.cuh"
}
namespace iq4_nl {
#include "format/iq4_nl.cuh"
}
namespace iq4_xs {
#include "format/iq4_xs.cuh"
}
namespace mxfp4 {
#include "format/mxfp4.cuh"
}
namespace f8_e4m3 {
#include "format/f8_e4m3.cuh"
}
namespace iq1_s {
#include "format/iq1_s.cuh"
}
namespace iq1_m {
#include "format/iq1_m.cuh"
}
namespace iq2_xxs {
#include "format/iq2_xxs.cuh"
}
namespace iq2_xs {
#include "format/iq2_xs.cuh"
}
namespace iq2_s {
#include "format/iq2_s.cuh"
}
namespace iq3_xxs {
#include "format/iq3_xxs.cuh"
}
namespace iq3_s {
#include "format/iq3_s.cuh"
}
namespace tq1_0 {
#include "format/tq1_0.cuh"
}
namespace tq2_0 {
#include "format/tq2_0.cuh"
}
namespace q1_0 {
#include "format/q1_0.cuh"
}
namespace nvfp4 {
#include "format/nvfp4.cuh"
}
namespace nvfp4_f32 {
#include "format/nvfp4_f32.cuh"
}

// The affine formats that the model uses: bits, group size, and whether scales are BF16.
#ifdef AFFINE_0_BITS
#define BITS AFFINE_0_BITS
#define GROUP AFFINE_0_GROUP
#define BF16 AFFINE_0_BF16
namespace affine_0 {
#include "format/affine.cuh"
}
#undef BITS
#undef GROUP
#undef BF16
#endif
#ifdef AFFINE_1_BITS
#define BITS AFFINE_1_BITS
#define GROUP AFFINE_1_GROUP
#define BF16 AFFINE_1_BF16
namespace affine_1 {
#include "format/affine.cuh"
}
#undef BITS
#undef GROUP
#undef BF16
#endif
#ifdef AFFINE_2_BITS
#define BITS AFFINE_2_BITS
#define GROUP AFFINE_2_GROUP
#define BF16 AFFINE_2_BF16
namespace affine_2 {
#include "format/affine.cuh"
}
#undef BITS
#undef GROUP
#undef BF16
#endif
#ifdef AFFINE_3_BITS
#define BITS AFFINE_3_BITS
#define GROUP AFFINE_3_GROUP
#define BF16 AFFINE_3_BF16
namespace affine_3 {
#include "format/affine.cuh"
}
#undef BITS
#undef GROUP
#undef BF16
#endif
