// The functions of kernels/wgmma.cuh in plain C++. A lane works out its own sums, at once.
#pragma once

inline u64 wgmma_operand(u32 address, u32 leading, u32 stride) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}
template <u32 COUNT> inline void fewer_registers() {}
template <u32 COUNT> inline void more_registers() {}
inline void wgmma_begin() { __syncwarp(); }
inline void wgmma_commit() {}
template <u32 PENDING> inline void wgmma_wait() { __syncwarp(); }
inline void wgmma_settled(float &) {}

namespace pretend_gpu {

// An operand in shared memory: 128-byte rows, eight of them 1024 bytes, the 16-byte pieces of a row exchanged by its number.
struct Operand {
    u32 start, leading, stride;
    const u8 *origin;

    Operand(u64 bits) : start((u32)(bits & 0x3fff) << 4), leading((u32)(bits >> 16 & 0x3fff) << 4), stride((u32)(bits >> 32 & 0x3fff) << 4) {
        if (bits >> 62 != 1) pretend->die("a product's operand in another order than the kernels use");
        origin = (const u8 *)pretend->shared(start, 16) - start;
    }
    u16 at(u32 address) const { return *(const u16 *)(origin + (address ^ (address >> 7 & 7) << 4)); }
    // Element k of row r, k along the rows.
    u16 along(u32 r, u32 k) const { return at(start + r / 8 * stride + r % 8 * 128 + 2 * k); }
    // Column n of row k, the columns along the rows.
    u16 across(u32 n, u32 k) const { return at(start + n / 64 * leading + k / 8 * stride + k % 8 * 128 + n % 64 * 2); }
};

template <bool IS_BF16> inline float widened(u16 bits) { return IS_BF16 ? __uint_as_float((u32)bits << 16) : __half2float(__ushort_as_half(bits)); }

// Sums 4n.. are of rows g and g + 8 of the warp's sixteen and of columns 8n + 2t and the next; `b(n, k)` gives the second operand.
template <class A, class B> inline void add_products(float *s, u32 columns, A a, B b) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float rows[2][16];
    for (u32 k = 0; k < 16; k++)
        for (u32 h = 0; h < 2; h++) rows[h][k] = a(g + 8 * h, k);
    for (u32 n = 0; n < columns / 8; n++)
        for (u32 i = 0; i < 2; i++) {
            float x = 0.0f, y = 0.0f;
            for (u32 k = 0; k < 16; k++) {
                float v = b(8 * n + 2 * t + i, k);
                x += rows[0][k] * v;
                y += rows[1][k] * v;
            }
            s[4 * n + i] += x;
            s[4 * n + 2 + i] += y;
        }
}

} // namespace pretend_gpu

template <bool IS_BF16, u32 OF_A_LANE> inline void wgmma(float (&s)[OF_A_LANE], u64 a, u64 b) {
    pretend_gpu::Operand first(a), second(b);
    u32 warp = threadIdx.x / 32 % 4 * 16;
    pretend_gpu::add_products(
        s, OF_A_LANE * 2, [&](u32 r, u32 k) { return pretend_gpu::widened<IS_BF16>(first.along(warp + r, k)); }, [&](u32 n, u32 k) { return pretend_gpu::widened<IS_BF16>(second.along(n, k)); });
}

inline void wgmma_from(float (&c)[8][4], u64 a, u64 b, u32 add) {
    if (!add) memset(c, 0, sizeof c);
    wgmma<false>(*(float(*)[32])c, a, b);
}

namespace pretend_gpu {

// The first operand in registers: two elements of rows g and g + 8 lie with each of a group's four lanes, then the same eight further on.
template <bool IS_BF16> struct FromLanes {
    const Slot *all;
    explicit FromLanes(const u32 (&a)[4]) : all(pretend->meet(~0u, FRAGMENT, a, 16)) {}
    float operator()(u32 r, u32 k) const {
        u32 word = all[r % 8 * 4 + k % 8 / 2].w[r / 8 + 2 * (k / 8)];
        return widened<IS_BF16>((u16)(word >> 16 * (k % 2)));
    }
};

} // namespace pretend_gpu

template <u32 EIGHTS> inline void wgmma_turned(float (&c)[EIGHTS][4], const u32 (&a)[4], u64 b) {
    pretend_gpu::Operand second(b);
    pretend_gpu::add_products(&c[0][0], EIGHTS * 8, pretend_gpu::FromLanes<false>(a), [&](u32 n, u32 k) { return pretend_gpu::widened<false>(second.across(n, k)); });
}

template <bool IS_BF16, u32 EIGHTS> inline void wgmma_rows(float (&c)[EIGHTS][4], const u32 (&a)[4], u64 b) {
    pretend_gpu::Operand second(b);
    pretend_gpu::add_products(&c[0][0], EIGHTS * 8, pretend_gpu::FromLanes<IS_BF16>(a), [&](u32 n, u32 k) { return pretend_gpu::widened<IS_BF16>(second.along(n, k)); });
}

template <bool IS_BF16, u32 EIGHTS> inline void wgmma_tile(float (&c)[EIGHTS][4], u64 a, u64 b, u32 add) {
    if (!add) memset(c, 0, sizeof c);
    wgmma<IS_BF16>(*(float(*)[EIGHTS * 4])c, a, b);
}
