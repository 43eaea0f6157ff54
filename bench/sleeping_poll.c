/* Preloaded into ranks of MPICH: where a library asks its sockets again and again without waiting, it sleeps until something
 * comes, for a millisecond at most. Spinning is right where a rank has a processor for itself. Here all ranks and all
 * switches share one machine's, so that spinning ranks would slow the network that is to be measured. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>

enum { LONGEST_MS = 1 };

static void *original(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
    static int (*wait)(int, struct epoll_event *, int, int);
    if (!wait) wait = original("epoll_wait");
    return wait(epoll, events, most, timeout ? timeout : LONGEST_MS);
}

int poll(struct pollfd *files, nfds_t count, int timeout) {
    static int (*wait)(struct pollfd *, nfds_t, int);
    if (!wait) wait = original("poll");
    return wait(files, count, timeout ? timeout : LONGEST_MS);
}
