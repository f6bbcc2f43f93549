/* runtime/plane/vouch.c: which process is at the other end of a local socket, according to the kernel and not to that
 * process.
 *
 * A process number may name another process a moment later, so no process is signalled by its number: a pidfd stays
 * with the process that it was made for.  Kernels from 6.5 on give the pidfd of a socket's peer; older ones give a
 * process number, which is accepted if a pidfd made from it leads to a process of this user.  On kernels without pidfd
 * only children are signalled.
 *
 * A process of another user is ignored: ranks do not talk to it and never signal it. */
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/plane/private.h"

enum { PEER_PIDFD = 77 }; /* SO_PEERPIDFD, which the C library does not name yet */

static bool credentials(int fd, struct ucred *c)
{
	struct sockaddr_storage a;
	socklen_t n = sizeof(*c), n_a = sizeof(a);
	if (getsockname(fd, (struct sockaddr *)&a, &n_a) || a.ss_family != AF_UNIX)
		return false;
	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, c, &n) && n == sizeof(*c);
}

bool vouch_user(int fd)
{
	struct ucred c;
	return credentials(fd, &c) && c.uid == geteuid();
}

/* A pidfd of the process with this number, if the process belongs to this user; -1: not.  The user is checked while the
 * pidfd is open, so the number cannot have been reused. */
static int open_process(pid_t pid)
{
	char path[64];
	struct stat s;
	int fd = pid > 1 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	if (fd >= 0 && (stat(path, &s) || s.st_uid != geteuid())) {
		close(fd);
		fd = -1;
	}
	return fd;
}

int vouch_process(int fd)
{
	struct ucred c;
	int pidfd = -1;
	socklen_t n = sizeof(pidfd);
	if (!credentials(fd, &c) || c.uid != geteuid() || c.pid <= 1)
		return -1;
	if (!getsockopt(fd, SOL_SOCKET, PEER_PIDFD, &pidfd, &n) && n == sizeof(pidfd))
		return pidfd;
	return open_process(c.pid);
}

int vouch_parent(void)
{
	pid_t parent = getppid();
	int fd = open_process(parent);
	if (fd >= 0 && getppid() != parent) {
		close(fd);
		fd = -1;
	}
	return fd;
}

void vouch_kill(int pidfd)
{
	if (pidfd >= 0)
		syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
}
