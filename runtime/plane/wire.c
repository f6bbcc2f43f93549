/* runtime/plane/wire.c: messages over a stream socket: length, kind, bytes, and, once both ends have keys, a proof that
 * the other end sent it with this sequence number.
 *
 * A message that is longer than the limit, or whose proof is wrong, closes the link.  The link buffers no more bytes
 * than one message of the limit needs.
 *
 * Nothing here blocks, so a peer that is stopped cannot stop this process: what its socket does not take waits in
 * `out`.  A broken peer looks like one that has closed the link. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "runtime/plane/private.h"

typedef struct Head { uint32_t bytes, kind; } Head;

int64_t clock_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void link_open(Link *l, int fd)
{
	*l = (Link){.fd = fd, .limit = STRANGER_LIMIT};
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void link_close(Link *l)
{
	if (l->fd >= 0)
		close(l->fd);
	buf_free(&l->in);
	buf_free(&l->out);
	*l = (Link){.fd = -1};
}

void link_trust(Link *l, const LinkKey *mine, const LinkKey *theirs)
{
	l->mine = *mine;
	l->theirs = *theirs;
}

/* Makes the proof of the next message in one direction, over its number, head and bytes. */
static void prove(LinkKey *k, const char *message, size_t n, uint8_t out[SIP_BYTES])
{
	siphash(k->key, k->n++, message, n, out);
}

void link_flush(Link *l)
{
	while (l->sent < l->out.n) {
		ssize_t n = send(l->fd, l->out.at + l->sent, l->out.n - l->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n <= 0)
			break; /* the next read will find that the peer is gone */
		l->sent += (size_t)n;
	}
	l->out.n = l->sent = 0;
}

void link_send(Link *l, MessageKind kind, const void *p, size_t bytes)
{
	Head h = {(uint32_t)bytes, kind};
	size_t begin = l->out.n;
	uint8_t proof[SIP_BYTES];
	if (l->fd < 0)
		return;
	buf_put(&l->out, (const char *)&h, sizeof(h));
	if (bytes)
		buf_put(&l->out, p, bytes);
	if (l->mine.on) {
		prove(&l->mine, l->out.at + begin, sizeof(h) + bytes, proof);
		buf_put(&l->out, (const char *)proof, sizeof(proof));
	}
	link_flush(l);
}

bool link_receive(Link *l)
{
	char piece[16384];
	size_t most = l->limit + sizeof(Head) + SIP_BYTES;
	if (l->taken) {
		memmove(l->in.at, l->in.at + l->taken, l->in.n - l->taken);
		l->in.n -= l->taken;
		l->taken = 0;
	}
	for (int i = 0; i < 64 && l->in.n < most; i++) {
		ssize_t n = recv(l->fd, piece, MIN(sizeof(piece), most - l->in.n), MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN || errno == EWOULDBLOCK;
		if (n == 0)
			return false;
		buf_put(&l->in, piece, (size_t)n);
	}
	return true;
}

int link_kind(const Link *l)
{
	Head h;
	if (l->fd < 0 || l->in.n - l->taken < sizeof(h))
		return -1;
	memcpy(&h, l->in.at + l->taken, sizeof(h));
	return (int)MIN(h.kind, (uint32_t)MSG_END + 1);
}

bool link_next(Link *l, Message *m)
{
	Head h;
	uint8_t proof[SIP_BYTES];
	size_t have = l->in.n - l->taken, behind = l->theirs.on ? sizeof(proof) : 0;
	if (l->fd < 0 || have < sizeof(h))
		return false;
	const char *at = l->in.at + l->taken;
	memcpy(&h, at, sizeof(h));
	if (h.bytes > l->limit || h.kind > MSG_END) {
		link_close(l);
		return false;
	}
	if (have - sizeof(h) < h.bytes + behind)
		return false;
	if (behind) {
		prove(&l->theirs, at, sizeof(h) + h.bytes, proof);
		if (!mac_equal(proof, at + sizeof(h) + h.bytes, sizeof(proof))) {
			link_close(l);
			return false;
		}
	}
	*m = (Message){(int)h.kind, at + sizeof(h), h.bytes};
	l->taken += sizeof(h) + h.bytes + behind;
	return true;
}

bool message_read(const Message *m, void *out, size_t bytes)
{
	if (m->bytes != bytes)
		return false;
	memcpy(out, m->at, bytes);
	return true;
}
