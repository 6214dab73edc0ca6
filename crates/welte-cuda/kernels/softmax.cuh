// Softmax weights are powers of two: scores carry a factor of log2(e).
#pragma once
#include "common.cuh"

#define LOG2E 1.4426950408889634f
#define NEVER (-__int_as_float(0x7f800000)) // minus infinity
