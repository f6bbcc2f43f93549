/* tests/unit/test_mac.c: base/mac.c against published test vectors: FIPS 180-4 and NIST's long message for SHA-256,
 * RFC 4231 for HMAC, the SipHash authors' vectors_sip128 for SipHash. */
#include "base/mac.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/unit.h"

static void check_hex(const uint8_t *got, size_t n, const char *want)
{
	char text[2 * SHA256_BYTES + 1] = "", message[200];
	for (size_t i = 0; i < n; i++)
		snprintf(text + 2 * i, 3, "%02x", got[i]);
	snprintf(message, sizeof(message), "got %s, expected %s", text, want);
	UNIT_CHECK(!strcmp(text, want), message);
}

static void sha256_of_published_messages(void)
{
	static const struct { const char *text, *want; } cases[] = {
		{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
			"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
	};
	uint8_t out[SHA256_BYTES];
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		sha256(cases[i].text, strlen(cases[i].text), out);
		check_hex(out, sizeof(out), cases[i].want);
	}
	char *million = malloc(1000000);
	memset(million, 'a', 1000000);
	sha256(million, 1000000, out);
	check_hex(out, sizeof(out), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
	free(million);
}

static void hmac_of_rfc_4231(void)
{
	static const char question[] = "what do ya want for nothing?";
	static const char larger[] = "Test Using Larger Than Block-Size Key - Hash Key First";
	uint8_t key[131], data[50], out[SHA256_BYTES];
	memset(key, 0x0b, 20);
	hmac_sha256(key, 20, "Hi There", 8, NULL, 0, out);
	check_hex(out, sizeof(out), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
	hmac_sha256("Jefe", 4, question, 10, question + 10, sizeof(question) - 11, out);
	check_hex(out, sizeof(out), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
	memset(key, 0xaa, sizeof(key));
	memset(data, 0xdd, sizeof(data));
	hmac_sha256(key, 20, data, sizeof(data), NULL, 0, out);
	check_hex(out, sizeof(out), "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
	hmac_sha256(key, sizeof(key), NULL, 0, larger, sizeof(larger) - 1, out);
	check_hex(out, sizeof(out), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

/* vectors_sip128: the key is 00 01 .. 0f, the message 00 01 .. of each length; those of 8 bytes and more fit here. */
static void siphash_of_its_authors(void)
{
	static const struct { size_t n; const char *want; } cases[] = {
		{8, "3b62a9ba6258f5610f83e264f31497b4"}, {9, "264499060ad9baabc47f8b02bb6d71ed"},
		{15, "5493e99933b0a8117e08ec0f97cfc3d9"}, {16, "6ee2a4ca67b054bbfd3315bf85230577"},
		{17, "473d06e8738db89854c066c47ae47740"}, {23, "c9d184ddd5a9f5e0cf8ce29a9abf691c"},
	};
	uint8_t key[SIP_KEY], message[64], out[SIP_BYTES];
	for (int i = 0; i < 64; i++)
		message[i] = (uint8_t)i;
	memcpy(key, message, sizeof(key));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		siphash(key, 0x0706050403020100, message + 8, cases[i].n - 8, out);
		check_hex(out, sizeof(out), cases[i].want);
	}
}

static void equal_means_every_bit(void)
{
	uint8_t a[SHA256_BYTES] = {0}, b[SHA256_BYTES] = {0};
	CU_ASSERT(mac_equal(a, b, sizeof(a)));
	for (int i = 0; i < 8 * SHA256_BYTES; i++) {
		b[i / 8] ^= (uint8_t)(1 << i % 8);
		CU_ASSERT_FALSE(mac_equal(a, b, sizeof(a)));
		b[i / 8] = 0;
	}
}

void suite_mac(void)
{
	CU_pSuite s = CU_add_suite("mac", NULL, NULL);
	CU_ADD_TEST(s, sha256_of_published_messages);
	CU_ADD_TEST(s, hmac_of_rfc_4231);
	CU_ADD_TEST(s, siphash_of_its_authors);
	CU_ADD_TEST(s, equal_means_every_bit);
}
