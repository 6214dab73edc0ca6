// Every format of weights beside each other, each in a namespace of its own.
#pragma once
#include "blocks.cuh"
#include "format/k_head.cuh"

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
