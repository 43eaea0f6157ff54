/* A library to preload into ranks of MPICH. Where a rank polls its sockets without waiting, it now
 * sleeps until data arrives, but for at most one millisecond. Polling is right if a rank has a CPU
 * of its own. Here all ranks and switches share the CPUs of one machine, so polling ranks would
 * slow down the network that is measured. */
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
