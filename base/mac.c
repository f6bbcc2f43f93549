/* base/mac.c: HMAC-SHA256 and SipHash-2-4-128.
 *
 * HMAC runs once per connection, so its code is small rather than fast (some 200 MB/s).  SipHash runs on every message
 * and needs no tricks to be fast (over 1 GB/s).  Secret bytes are only operands of arithmetic: no branch and no index
 * depends on them. */
#include "base/mac.h"

#include <string.h>

/* ---- SHA-256 ---- */

enum { BLOCK = 64 };

typedef struct Sha { uint32_t h[8]; uint8_t block[BLOCK]; size_t n; uint64_t bytes; } Sha;

static const uint32_t rounds[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t right(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha_block(uint32_t h[8], const uint8_t *p)
{
	uint32_t w[64], s[8];
	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t a = w[i - 15], b = w[i - 2];
		w[i] = w[i - 16] + w[i - 7] + (right(a, 7) ^ right(a, 18) ^ a >> 3) + (right(b, 17) ^ right(b, 19) ^ b >> 10);
	}
	memcpy(s, h, sizeof(s));
	for (int i = 0; i < 64; i++) {
		uint32_t e = s[4], a = s[0];
		uint32_t t = s[7] + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + rounds[i] + w[i];
		uint32_t u = (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
		memmove(s + 1, s, 7 * sizeof(*s));
		s[4] += t;
		s[0] = t + u;
	}
	for (int i = 0; i < 8; i++)
		h[i] += s[i];
}

static void sha_begin(Sha *s)
{
	static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
		0x1f83d9ab, 0x5be0cd19};
	memset(s, 0, sizeof(*s));
	memcpy(s->h, first, sizeof(first));
}

static void sha_put(Sha *s, const void *p, size_t n)
{
	const uint8_t *at = p;
	s->bytes += n;
	while (n > 0) {
		size_t take = n < BLOCK - s->n ? n : BLOCK - s->n;
		memcpy(s->block + s->n, at, take);
		s->n += take;
		at += take;
		n -= take;
		if (s->n < BLOCK)
			return;
		sha_block(s->h, s->block);
		s->n = 0;
	}
}

static void sha_end(Sha *s, uint8_t out[SHA256_BYTES])
{
	static const uint8_t padding[BLOCK] = {0x80};
	uint64_t bits = s->bytes * 8;
	uint8_t length[8];
	for (int i = 0; i < 8; i++)
		length[i] = (uint8_t)(bits >> (56 - 8 * i));
	sha_put(s, padding, 1 + (BLOCK + 55 - s->n) % BLOCK);
	sha_put(s, length, sizeof(length));
	for (int i = 0; i < SHA256_BYTES; i++)
		out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256(const void *p, size_t n, uint8_t out[SHA256_BYTES])
{
	Sha s;
	sha_begin(&s);
	sha_put(&s, p, n);
	sha_end(&s, out);
}

/* ---- HMAC ---- */

void hmac_sha256(const void *key, size_t n_key, const void *a, size_t n_a, const void *b, size_t n_b,
	uint8_t out[SHA256_BYTES])
{
	uint8_t inner[BLOCK] = {0}, outer[BLOCK];
	Sha s;
	if (n_key > BLOCK)
		sha256(key, n_key, inner);
	else if (n_key)
		memcpy(inner, key, n_key);
	for (int i = 0; i < BLOCK; i++) {
		outer[i] = inner[i] ^ 0x5c;
		inner[i] ^= 0x36;
	}
	sha_begin(&s);
	sha_put(&s, inner, BLOCK);
	sha_put(&s, a, n_a);
	sha_put(&s, b, n_b);
	sha_end(&s, out);
	sha_begin(&s);
	sha_put(&s, outer, BLOCK);
	sha_put(&s, out, SHA256_BYTES);
	sha_end(&s, out);
}

/* ---- SipHash ---- */

static uint64_t left(uint64_t x, int n) { return x << n | x >> (64 - n); }

static uint64_t word(const uint8_t *p)
{
	uint64_t x = 0;
	for (int i = 0; i < 8; i++)
		x |= (uint64_t)p[i] << (8 * i);
	return x;
}

static void sip_rounds(uint64_t v[4], int n)
{
	for (int i = 0; i < n; i++) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = left(v[1], 13) ^ v[0];
		v[3] = left(v[3], 16) ^ v[2];
		v[0] = left(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = left(v[1], 17) ^ v[2];
		v[3] = left(v[3], 21) ^ v[0];
		v[2] = left(v[2], 32);
	}
}

static void sip_word(uint64_t v[4], uint64_t m)
{
	v[3] ^= m;
	sip_rounds(v, 2);
	v[0] ^= m;
}

static void put_word(uint8_t *out, uint64_t x)
{
	for (int i = 0; i < 8; i++)
		out[i] = (uint8_t)(x >> (8 * i));
}

void siphash(const uint8_t key[SIP_KEY], uint64_t first, const void *p, size_t n, uint8_t out[SIP_BYTES])
{
	const uint8_t *at = p;
	uint64_t k0 = word(key), k1 = word(key + 8), last = (uint64_t)(n + 8) << 56;
	uint64_t v[4] = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d ^ 0xee, k0 ^ 0x6c7967656e657261,
		k1 ^ 0x7465646279746573};
	sip_word(v, first);
	for (; n >= 8; n -= 8, at += 8)
		sip_word(v, word(at));
	for (size_t i = 0; i < n; i++)
		last |= (uint64_t)at[i] << (8 * i);
	sip_word(v, last);
	v[2] ^= 0xee;
	sip_rounds(v, 4);
	put_word(out, v[0] ^ v[1] ^ v[2] ^ v[3]);
	v[1] ^= 0xdd;
	sip_rounds(v, 4);
	put_word(out + 8, v[0] ^ v[1] ^ v[2] ^ v[3]);
}

bool mac_equal(const void *a, const void *b, size_t n)
{
	const volatile uint8_t *x = a, *y = b;
	uint8_t different = 0;
	for (size_t i = 0; i < n; i++)
		different |= x[i] ^ y[i];
	return different == 0;
}
