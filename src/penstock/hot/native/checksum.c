/*
 * CRC-32 as zlib has it, for records.c.
 *
 * It covers every byte that is stored and read, so it uses the fastest way of the processor:
 * where that multiplies without carry, 64 bytes at a time; elsewhere 16, by tables.
 */

#include "twins.h"

#define POLYNOMIAL 0xEDB88320
#define CHECKSUM_STRIDE 16

/* checksum_tables[n][byte] is what a byte does to the checksum once n more have followed it. */
static uint32_t checksum_tables[CHECKSUM_STRIDE][256];

/* Called when the module is made; the tables never change afterwards. */
void fill_checksum_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t checksum = byte;
        for (int bit = 0; bit < 8; bit++)
            checksum = (checksum >> 1) ^ (checksum & 1 ? POLYNOMIAL : 0);
        checksum_tables[0][byte] = checksum;
    }
    for (int n = 1; n < CHECKSUM_STRIDE; n++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = checksum_tables[n - 1][byte];
            checksum_tables[n][byte] = (before >> 8) ^ checksum_tables[0][before & 0xff];
        }
}

static uint32_t update_by_tables(uint32_t checksum, const char *byte, const char *end) {
    for (; end - byte >= CHECKSUM_STRIDE; byte += CHECKSUM_STRIDE) {
        uint64_t first = get_little(byte, 8) ^ checksum, second = get_little(byte + 8, 8);
        checksum = 0;
        for (int i = 0; i < 8; i++)
            checksum ^= checksum_tables[15 - i][(first >> (8 * i)) & 0xff] ^
                        checksum_tables[7 - i][(second >> (8 * i)) & 0xff];
    }
    for (; byte < end; byte++)
        checksum = (checksum >> 8) ^ checksum_tables[0][(checksum ^ (unsigned char)*byte) & 0xff];
    return checksum;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define FOLDED_BYTES_MIN 64
#define CAN_FOLD (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
#define FOLDING static inline __attribute__((always_inline, target("pclmul,sse4.1")))

FOLDING __m128i load(const char *bytes) { return _mm_loadu_si128((const __m128i *)bytes); }

/* Move what was read further along, as far as the powers of x in `shift` say, and add the next. */
FOLDING __m128i fold(__m128i read, __m128i shift, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(read, shift, 0x00);
    __m128i high = _mm_clmulepi64_si128(read, shift, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Divide what is left, 128 bits, by the polynomial: to 96 bits, to 64, and by Barrett to 32. */
FOLDING uint32_t reduce(__m128i read, __m128i shift_128) {
    const __m128i low_32 = _mm_setr_epi32(~0, 0, ~0, 0);
    const __m128i shift_64 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    read = _mm_xor_si128(_mm_srli_si128(read, 8), _mm_clmulepi64_si128(read, shift_128, 0x10));
    read = _mm_xor_si128(_mm_srli_si128(read, 4),
                         _mm_clmulepi64_si128(_mm_and_si128(read, low_32), shift_64, 0x00));
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(read, low_32), barrett, 0x10);
    quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(read, quotient), 1);
}

/* Update with at least 64 bytes, a multiple of 16. The shifts are powers of x, reflected. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t update_by_folding(uint32_t checksum,
                                                                           const char *byte,
                                                                           const char *end) {
    const __m128i shift_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i shift_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i lanes[4];
    for (int i = 0; i < 4; i++)
        lanes[i] = load(byte + 16 * i);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)checksum));
    for (byte += 64; end - byte >= 64; byte += 64)
        for (int i = 0; i < 4; i++)
            lanes[i] = fold(lanes[i], shift_512, load(byte + 16 * i));
    for (int i = 1; i < 4; i++)
        lanes[i] = fold(lanes[i - 1], shift_128, lanes[i]);
    for (; byte < end; byte += 16)
        lanes[3] = fold(lanes[3], shift_128, load(byte));
    return reduce(lanes[3], shift_128);
}

static uint32_t update_checksum(uint32_t checksum, const char *byte, const char *end) {
    if (end - byte >= FOLDED_BYTES_MIN && CAN_FOLD) {
        const char *folded_end = byte + (end - byte) / 16 * 16;
        checksum = update_by_folding(checksum, byte, folded_end);
        byte = folded_end;
    }
    return update_by_tables(checksum, byte, end);
}
#else
#define update_checksum update_by_tables
#endif

uint32_t checksum_of(Slice bytes, uint32_t salt) {
    return ~update_checksum(~salt, bytes.start, bytes.start + bytes.size);
}
