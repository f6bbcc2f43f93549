/* runtime/plane/secret.c: the secret that the ranks of one run share, and the proofs made of it.
 *
 * The secret itself never travels.  The hub sends a random number.  A rank answers with one of its own and an
 * HMAC-SHA256, keyed with the secret, of both numbers and of everything it says about itself.  From both numbers and
 * that proof each end derives two keys, one for each direction, and every later message carries a SipHash, under its
 * direction's key, of its sequence number and bytes.  So the hub proves itself by its first answer; recorded messages
 * are not valid on another connection or in the other direction; and a message that was changed, dropped or repeated
 * closes the link.
 *
 * Without a secret all of this is done with a key that everybody knows: it then detects errors, but keeps nobody
 * out. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/plane/private.h"

enum { SHORTEST = 16, LONGEST = 4096 };

static const char purpose[] = "shardc control plane 2";

/* ---- finding it ---- */

static bool make(Secret *s, const char *text, size_t n, const char *from, const char *where, Diag *d)
{
	if (n < SHORTEST || n > LONGEST) {
		diag_error(d, where, "the secret in %s has %zu characters, and should have from %d to %d that nobody guesses: "
			"openssl rand -hex 32 makes one", from, n, SHORTEST, LONGEST);
		return false;
	}
	s->given = true;
	hmac_sha256(text, n, purpose, sizeof(purpose), NULL, 0, s->key);
	return true;
}

static const char *why_not_private(const struct stat *s)
{
	if (!S_ISREG(s->st_mode))
		return "is no regular file";
	if (s->st_uid != geteuid())
		return "belongs to another user";
	return s->st_mode & 077 ? "can be read by other users: chmod 600 helps" : NULL;
}

static bool read_file(Secret *s, const char *path, const char *where, Diag *d)
{
	char text[LONGEST + 2];
	struct stat info;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	ssize_t n = fd < 0 || fstat(fd, &info) ? -1 : 0;
	const char *why = n < 0 ? strerror(errno) : why_not_private(&info);
	if (!why && (n = read(fd, text, sizeof(text))) < 0)
		why = strerror(errno);
	if (fd >= 0)
		close(fd);
	if (why) {
		diag_error(d, where, "SHARDC_SECRET_FILE=%s: %s", path, why);
		return false;
	}
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
		n--;
	bool ok = make(s, text, (size_t)n, path, where, d);
	explicit_bzero(text, sizeof(text));
	return ok;
}

bool secret_find(Secret *s, const char *where, Diag *d)
{
	const char *text = getenv("SHARDC_SECRET"), *path = getenv("SHARDC_SECRET_FILE");
	*s = (Secret){0};
	hmac_sha256(NULL, 0, purpose, sizeof(purpose), NULL, 0, s->key);
	if (text && path) {
		diag_error(d, where, "both SHARDC_SECRET and SHARDC_SECRET_FILE are set: unset one");
		return false;
	}
	return text ? make(s, text, strlen(text), "SHARDC_SECRET", where, d) : !path || read_file(s, path, where, d);
}

void secret_add(Secret *s, const char key[KEY_BYTES])
{
	uint8_t old[SHA256_BYTES];
	memcpy(old, s->key, sizeof(old));
	s->given = true;
	hmac_sha256(old, sizeof(old), "key of the address", 18, key, KEY_BYTES, s->key);
}

/* ---- proofs ---- */

void secret_nonce(uint8_t nonce[NONCE_BYTES])
{
	if (getrandom(nonce, NONCE_BYTES, 0) != NONCE_BYTES)
		ice("the system has no random numbers: %s", strerror(errno));
}

/* HMAC of a label, the challenge and the first n bytes of the hello. */
static void sign(
	const Secret *s, const char label[8], const Challenge *c, const Hello *h, size_t n, uint8_t out[SHA256_BYTES])
{
	char first[8 + sizeof(*c)];
	memcpy(first, label, 8);
	memcpy(first + 8, c, sizeof(*c));
	hmac_sha256(s->key, sizeof(s->key), first, sizeof(first), h, n, out);
}

void secret_prove(const Secret *s, const Challenge *c, const Hello *h, uint8_t proof[SHA256_BYTES])
{
	sign(s, "is rank ", c, h, offsetof(Hello, proof), proof);
}

void secret_keys(const Secret *s, const Challenge *c, const Hello *h, LinkKey *of_rank, LinkKey *of_hub)
{
	uint8_t both[SHA256_BYTES];
	_Static_assert(sizeof(both) == 2 * SIP_KEY, "one HMAC makes two keys");
	sign(s, "has keys", c, h, sizeof(*h), both);
	*of_rank = (LinkKey){.on = true};
	*of_hub = (LinkKey){.on = true};
	memcpy(of_rank->key, both, SIP_KEY);
	memcpy(of_hub->key, both + SIP_KEY, SIP_KEY);
}
