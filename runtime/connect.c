/* runtime/connect.c: how ranks that nobody started together find rank 0.
 *
 * Rank 0 listens at the address that the launcher's variables give, or, under MPI, at all addresses of its
 * host, which it tells the others with a random key.  The others try every address until one accepts them:
 * a program that happens to listen there, or another run, does not answer, or refuses.
 *
 * The one idea: an address that does not answer yet and a wrong one look alike, so both are tried until the
 * timeout and the last reason is said then. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/plane.h"

/* ---- address text ---- */

bool address_key(const char *text, char key[KEY_BYTES])
{
	memset(key, 0, KEY_BYTES);
	const char *at = text ? strchr(text, '@') : NULL;
	if (!at || at - text != 2 * KEY_BYTES)
		return !at;
	for (int i = 0; i < KEY_BYTES; i++) {
		unsigned byte;
		if (sscanf(text + (ptrdiff_t)2 * i, "%2x", &byte) != 1)
			return false;
		key[i] = (char)byte;
	}
	return true;
}

/* "host:port" or "[v6]:port", the i-th of a list. */
static bool split_address(const char *text, int i, char *host, char *port, size_t n)
{
	const char *at = strchr(text, '@');
	text = at ? at + 1 : text;
	for (; i > 0; i--) {
		text = strchr(text, ',');
		if (!text)
			return false;
		text++;
	}
	char one[300];
	snprintf(one, sizeof(one), "%.*s", (int)MIN(strcspn(text, ","), sizeof(one) - 1), text);
	char *colon = strrchr(one, ':');
	if (!colon)
		return false;
	*colon = 0;
	char *begin = one, *end = colon - 1;
	if (*begin == '[' && end > begin && *end == ']') {
		begin++;
		*end = 0;
	}
	return snprintf(host, n, "%s", begin) < (int)n && snprintf(port, n, "%s", colon + 1) < (int)n;
}

static int resolve(const char *host, const char *port, struct addrinfo **out)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	return getaddrinfo(host, port, &hints, out);
}

/* ---- rank 0 ---- */

static int listen_on(const struct sockaddr *a, socklen_t n)
{
	int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1, no = 0;
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (a->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
	if (bind(fd, a, n) == 0 && listen(fd, 1024) == 0)
		return fd;
	int saved = errno;
	close(fd);
	errno = saved;
	return -1;
}

int listen_at(const char *address, const char *where, Diag *d)
{
	char host[256], port[256];
	struct addrinfo *list = NULL;
	if (!split_address(address, 0, host, port, sizeof(host))) {
		diag_error(d, where, "\"%s\" is no address: HOST:PORT is expected", address);
		return -1;
	}
	int failed = resolve(host, port, &list), fd = -1;
	if (failed) {
		diag_error(d, where, "MASTER_ADDR=%s cannot be resolved: %s", host, gai_strerror(failed));
		return -1;
	}
	for (const struct addrinfo *i = list; i && fd < 0; i = i->ai_next)
		fd = listen_on(i->ai_addr, i->ai_addrlen);
	int error = errno;
	freeaddrinfo(list);
	if (fd >= 0)
		return fd;
	if (error == EADDRINUSE)
		diag_error(d, where, "port %s (MASTER_PORT) of %s is in use: another run or another program "
			"listens there; end it, or give all ranks another MASTER_PORT", port, host);
	else if (error == EADDRNOTAVAIL)
		diag_error(d, where, "MASTER_ADDR=%s is no address of this machine, and rank 0 runs here: it has "
			"to name rank 0's machine", host);
	else
		diag_error(d, where, "rank 0 cannot listen on port %s (MASTER_PORT) of %s: %s", port, host,
			strerror(error));
	return -1;
}

static void say_interface(Buf *b, const struct ifaddrs *i, unsigned port)
{
	char host[NI_MAXHOST];
	if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) ||
		(i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
		return;
	bool v6 = i->ifa_addr->sa_family == AF_INET6;
	socklen_t n = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
	if (v6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr))
		return; /* means something on one link only */
	if (getnameinfo(i->ifa_addr, n, host, sizeof(host), NULL, 0, NI_NUMERICHOST))
		return;
	if (b->n + strlen(host) + 10 < ADDRESS_TEXT)
		buf_printf(b, v6 ? "%s[%s]:%u" : "%s%s:%u", b->at[b->n - 1] == '@' ? "" : ",", host, port);
}

static bool say_addresses(Buf *b, unsigned port)
{
	struct ifaddrs *list;
	if (getifaddrs(&list))
		return false;
	/* first those of this machine alone: they answer or refuse at once */
	for (int loop = 1; loop >= 0; loop--)
		for (const struct ifaddrs *i = list; i; i = i->ifa_next)
			if (!!(i->ifa_flags & IFF_LOOPBACK) == loop)
				say_interface(b, i, port);
	freeifaddrs(list);
	return b->at[b->n - 1] != '@';
}

const char *control_listen(Launch *l, Arena *a, Diag *d)
{
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
	struct sockaddr_in any4 = {.sin_family = AF_INET};
	struct sockaddr_storage got;
	socklen_t n = sizeof(got);
	int fd = listen_on((const struct sockaddr *)&any6, sizeof(any6));
	if (fd < 0)
		fd = listen_on((const struct sockaddr *)&any4, sizeof(any4));
	unsigned char key[KEY_BYTES];
	if (fd < 0 || getsockname(fd, (struct sockaddr *)&got, &n) ||
		getrandom(key, sizeof(key), 0) != sizeof(key)) {
		diag_error(d, "rank 0", "cannot listen for the other ranks: %s", strerror(errno));
		return NULL;
	}
	Buf b = {0};
	for (int i = 0; i < KEY_BYTES; i++)
		buf_printf(&b, "%02x", key[i]);
	buf_printf(&b, "@");
	unsigned port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port :
		((struct sockaddr_in *)&got)->sin_port);
	bool ok = say_addresses(&b, port);
	if (!ok)
		diag_error(d, "rank 0", "this machine has no network address at which the other ranks could find it");
	l->address = ok ? arena_strdup(a, b.at) : NULL;
	l->listen_fd = fd;
	buf_free(&b);
	return l->address;
}

/* ---- the others ---- */

int handshake(Link *l, const Hello *hello, int wait_ms, char *why, size_t n)
{
	Message m;
	link_send(l, MSG_HELLO, hello, sizeof(*hello));
	for (int64_t end = clock_ms() + wait_ms; clock_ms() < end;) {
		struct pollfd p = {.fd = l->fd, .events = POLLIN};
		poll(&p, 1, 100);
		bool open = link_receive(l);
		if (link_next(l, &m, MESSAGE_LIMIT)) {
			if (m.kind == MSG_ACCEPT)
				return 1;
			if (m.kind != MSG_REFUSE)
				break;
			snprintf(why, n, "%.*s", (int)m.bytes, m.at);
			return -1;
		}
		if (!open || l->fd < 0)
			break;
	}
	snprintf(why, n, "what listens there is no rank 0 of this run");
	return 0;
}

static int connect_one(const struct addrinfo *a)
{
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1, error = 0;
	socklen_t n = sizeof(error);
	if (fd < 0)
		return -1;
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	if (connect(fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS)
		error = errno;
	else if (poll(&p, 1, 1000) != 1)
		error = ETIMEDOUT;
	else
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	if (!error)
		return fd;
	close(fd);
	errno = error;
	return -1;
}

/* As handshake: 1, 0, -1. */
static int try_address(
	Link *l, const char *host, const char *port, const Hello *hello, int64_t end, char *why, size_t n)
{
	struct addrinfo *list = NULL;
	int failed = resolve(host, port, &list), result = 0;
	if (failed) {
		snprintf(why, n, "%s", gai_strerror(failed));
		return 0;
	}
	for (const struct addrinfo *i = list; i && result == 0; i = i->ai_next) {
		int fd = connect_one(i);
		if (fd < 0) {
			snprintf(why, n, "%s", strerror(errno));
			continue;
		}
		link_open(l, fd);
		result = handshake(l, hello, (int)MIN(5000, MAX(TICK_MS, end - clock_ms())), why, n);
		if (result != 1)
			link_close(l);
	}
	freeaddrinfo(list);
	return result;
}

bool connect_to(Link *l, const char *address, const Hello *hello, int64_t seconds, const char *where, Diag *d)
{
	char host[256], port[256], why[300] = "";
	const char *shown = strchr(address, '@') ? strchr(address, '@') + 1 : address;
	int64_t end = seconds ? clock_ms() + seconds * 1000 : INT64_MAX;
	do {
		for (int i = 0; split_address(address, i, host, port, sizeof(host)); i++) {
			int result = try_address(l, host, port, hello, end, why, sizeof(why));
			if (result == 1)
				return true;
			if (result == 0)
				continue;
			diag_error(d, where, "rank %d was refused by the run at %s: %s", hello->peer.rank, shown, why);
			return false;
		}
		usleep(TICK_MS * 1000);
	} while (clock_ms() < end);
	diag_error(d, where, "rank %d did not find rank 0 at %s%s within %d s: %s; is rank 0 running, and is "
		"that its address?", hello->peer.rank, shown,
		strchr(address, '@') ? "" : " (MASTER_ADDR:MASTER_PORT)",
		(int)seconds, why);
	return false;
}
