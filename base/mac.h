/* base/mac.h: message authentication: proves that a message comes from someone who knows a secret.  HMAC-SHA256 (FIPS
 * 198, FIPS 180-4) serves the few messages of a handshake, SipHash-2-4 with 128 bits (Aumasson, Bernstein) all messages
 * that follow, because it is as fast as a network. */
#ifndef SHARDC_MAC_H
#define SHARDC_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SIP_BYTES = 16, SIP_KEY = 16 };

void sha256(const void *p, size_t n, uint8_t out[SHA256_BYTES]);
/* The HMAC of a message in two parts, each of which may be empty (NULL, 0). */
void hmac_sha256(const void *key, size_t n_key, const void *a, size_t n_a, const void *b, size_t n_b,
	uint8_t out[SHA256_BYTES]);
/* The SipHash of `first`, as 8 bytes in little-endian order, followed by the n bytes at p. */
void siphash(const uint8_t key[SIP_KEY], uint64_t first, const void *p, size_t n, uint8_t out[SIP_BYTES]);
/* Whether n bytes are equal; takes the same time wherever they differ. */
bool mac_equal(const void *a, const void *b, size_t n);

#endif
