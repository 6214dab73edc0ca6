// Products of a warp group (four warps), which only sm_90a has. They are asynchronous and read operands in shared memory;
// the first operand may also be in registers. The result has 64 rows. A lane holds rows g and g + 8 of its warp's sixteen, and
// two consecutive columns of every eight.
#pragma once
#include "ptx.cuh"

// The descriptor of an operand in shared memory: panels of 128-byte rows whose eight 16-byte pieces are swizzled (tile.cuh).
// `leading` is the distance between panels, `stride` the distance between groups of eight rows, both in bytes.
__device__ __forceinline__ u64 wgmma_operand(u32 address, u32 leading, u32 stride) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

// Orders earlier writes to registers and shared memory before the following products.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all groups except the last PENDING are complete.
template <u32 PENDING> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Marks a result register as readable, after the wait.
__device__ __forceinline__ void wgmma_settled(float &sum) { asm volatile("" : "+f"(sum)::"memory"); }

// A warp group releases or takes registers: COUNT per thread afterwards.
template <u32 COUNT> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <u32 COUNT> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

#define S8(i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), "+f"(s[i + 6]), "+f"(s[i + 7])
#define S32(i) S8(i), S8(i + 8), S8(i + 16), S8(i + 24)
#define R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define R1 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R2 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define R3 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// 64 rows times 64, 128 or 256 rows, 16 elements of k. Both operands are in shared memory, with k along their rows.
template <bool IS_BF16> __device__ __forceinline__ void wgmma(float (&s)[32], u64 a, u64 b) {
    if (IS_BF16) asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" R0 "}, %32, %33, 1, 1, 1, 0, 0;" : S32(0) : "l"(a), "l"(b));
    else asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" R0 "}, %32, %33, 1, 1, 1, 0, 0;" : S32(0) : "l"(a), "l"(b));
}

template <bool IS_BF16> __device__ __forceinline__ void wgmma(float (&s)[64], u64 a, u64 b) {
    if (IS_BF16) asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" R0 R1 "}, %64, %65, 1, 1, 1, 0, 0;" : S32(0), S32(32) : "l"(a), "l"(b));
    else asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" R0 R1 "}, %64, %65, 1, 1, 1, 0, 0;" : S32(0), S32(32) : "l"(a), "l"(b));
}

template <bool IS_BF16> __device__ __forceinline__ void wgmma(float (&s)[128], u64 a, u64 b) {
    if (IS_BF16) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" R0 R1 R2 R3 "}, %128, %129, 1, 1, 1, 0, 0;"
                     : S32(0), S32(32), S32(64), S32(96) : "l"(a), "l"(b));
    } else {
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" R0 R1 R2 R3 "}, %128, %129, 1, 1, 1, 0, 0;"
                     : S32(0), S32(32), S32(64), S32(96) : "l"(a), "l"(b));
    }
}

#define FOUR(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define EIGHT_FOURS(c, i) FOUR(c, i), FOUR(c, i + 1), FOUR(c, i + 2), FOUR(c, i + 3), FOUR(c, i + 4), FOUR(c, i + 5), FOUR(c, i + 6), FOUR(c, i + 7)

// The same for 64 rows of f16. If `add` is 0, the sums start from zero.
__device__ __forceinline__ void wgmma_from(float (&c)[8][4], u64 a, u64 b, u32 add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" R0 "}, %32, %33, p, 1, 1, 0, 0;}"
                 : EIGHT_FOURS(c, 0)
                 : "l"(a), "l"(b), "r"(add)
                 : "memory");
}

// 64 rows in registers times 16 rows of k in shared memory, with 64 or 128 columns along them; f16.
__device__ __forceinline__ void wgmma_turned(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" R0 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : EIGHT_FOURS(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
}

__device__ __forceinline__ void wgmma_turned(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" R0 R1 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : EIGHT_FOURS(c, 0), EIGHT_FOURS(c, 8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
}

// 64 rows in registers times 64, 128 or 256 rows in shared memory, with k along them; f16 or bf16.
template <bool IS_BF16> __device__ __forceinline__ void wgmma_rows(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    if (IS_BF16) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" R0 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                     : EIGHT_FOURS(c, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
    } else {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" R0 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                     : EIGHT_FOURS(c, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
    }
}

template <bool IS_BF16> __device__ __forceinline__ void wgmma_rows(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    if (IS_BF16) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" R0 R1 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                     : EIGHT_FOURS(c, 0), EIGHT_FOURS(c, 8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
    } else {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" R0 R1 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                     : EIGHT_FOURS(c, 0), EIGHT_FOURS(c, 8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
    }
}

template <bool IS_BF16> __device__ __forceinline__ void wgmma_rows(float (&c)[32][4], const u32 (&a)[4], u64 b) {
    if (IS_BF16) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" R0 R1 R2 R3 "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 0;"
                     : EIGHT_FOURS(c, 0), EIGHT_FOURS(c, 8), EIGHT_FOURS(c, 16), EIGHT_FOURS(c, 24)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
    } else {
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" R0 R1 R2 R3 "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 0;"
                     : EIGHT_FOURS(c, 0), EIGHT_FOURS(c, 8), EIGHT_FOURS(c, 16), EIGHT_FOURS(c, 24)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
    }
}

// 64 rows times N rows, both in shared memory with k along them: sixteen elements of f16 or bf16, or 32 of FP8. If `add` is 0, the sums
// start from zero.
#define T2 "%0,%1,%2,%3,%4,%5,%6,%7"
#define T4 T2 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define T6 T4 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define T8 T6 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define T10 T8 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define T12 T10 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define T14 T12 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define T16 T14 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define T18 T16 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define T20 T18 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define T22 T20 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define T24 T22 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define O2(c) FOUR(c, 0), FOUR(c, 1)
#define O4(c) O2(c), FOUR(c, 2), FOUR(c, 3)
#define O6(c) O4(c), FOUR(c, 4), FOUR(c, 5)
#define O8(c) O6(c), FOUR(c, 6), FOUR(c, 7)
#define O10(c) O8(c), FOUR(c, 8), FOUR(c, 9)
#define O12(c) O10(c), FOUR(c, 10), FOUR(c, 11)
#define O14(c) O12(c), FOUR(c, 12), FOUR(c, 13)
#define O16(c) O14(c), FOUR(c, 14), FOUR(c, 15)
#define O18(c) O16(c), FOUR(c, 16), FOUR(c, 17)
#define O20(c) O18(c), FOUR(c, 18), FOUR(c, 19)
#define O22(c) O20(c), FOUR(c, 20), FOUR(c, 21)
#define O24(c) O22(c), FOUR(c, 22), FOUR(c, 23)
#define TILE_PRODUCT(J, N, A, B, P)                                                                                                 \
    template <bool IS_BF16> __device__ __forceinline__ void wgmma_tile(float (&c)[J][4], u64 a, u64 b, u32 add) {                   \
        if (IS_BF16)                                                                                                                \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #P ", 0;\n"                                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" T##J "}, %" #A ", %" #B ", p, 1, 1, 0, 0;}"   \
                         : O##J(c) : "l"(a), "l"(b), "r"(add) : "memory");                                                          \
        else                                                                                                                        \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #P ", 0;\n"                                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" T##J "}, %" #A ", %" #B ", p, 1, 1, 0, 0;}"     \
                         : O##J(c) : "l"(a), "l"(b), "r"(add) : "memory");                                                          \
    }                                                                                                                               \
    __device__ __forceinline__ void wgmma_tile_e4m3(float (&c)[J][4], u64 a, u64 b, u32 add) {                                      \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" #P ", 0;\n"                                                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" T##J "}, %" #A ", %" #B ", p, 1, 1;}"             \
                     : O##J(c) : "l"(a), "l"(b), "r"(add) : "memory");                                                              \
    }
TILE_PRODUCT(2, 16, 8, 9, 10)
TILE_PRODUCT(4, 32, 16, 17, 18)
TILE_PRODUCT(6, 48, 24, 25, 26)
TILE_PRODUCT(8, 64, 32, 33, 34)
TILE_PRODUCT(10, 80, 40, 41, 42)
TILE_PRODUCT(12, 96, 48, 49, 50)
TILE_PRODUCT(14, 112, 56, 57, 58)
TILE_PRODUCT(16, 128, 64, 65, 66)
TILE_PRODUCT(18, 144, 72, 73, 74)
TILE_PRODUCT(20, 160, 80, 81, 82)
TILE_PRODUCT(22, 176, 88, 89, 90)
TILE_PRODUCT(24, 192, 96, 97, 98)
