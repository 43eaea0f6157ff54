/* The least that a multicast of much data could cost: plain UDP sockets with segmentation in the
 * kernel on both sides (UDP_SEGMENT and UDP_GRO, udp(7)), without tags, repair or copies between
 * processes. wire.py compares the CPU time of COOL with it.
 *
 *   udp_stream receive GROUP PORT INTERFACE_IP BYTES
 *   udp_stream send GROUP PORT INTERFACE_IP BYTES RECEIVERS MTU
 *
 * Receivers print "ready" once they have joined the group, and report every 256 KiB to the sender,
 * which is never more than 1 MiB ahead of the slowest one. Nothing is retransmitted: if a datagram
 * is lost, the programs end with an error after 5 s. The sender prints the seconds from the first
 * datagram to the last report. */
#include <arpa/inet.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#define UDP_GRO 104
#endif

enum {
    BATCH_BYTES_MAX = 65507,
    REPORT_BYTES = 256 << 10,
    WINDOW_BYTES = 1 << 20,
    SOCKET_BUFFER_BYTES = 4 << 20,
    RECEIVERS_MAX = 64,
    HEADER_BYTES = 28,
    TIMEOUT_SECONDS = 5
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct sockaddr_in address(const char *ip, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (!inet_aton(ip, &a.sin_addr)) {
        fprintf(stderr, "%s is no address\n", ip);
        exit(2);
    }
    return a;
}

static int open_socket(void) {
    int s = socket(AF_INET, SOCK_DGRAM, 0), bytes = SOCKET_BUFFER_BYTES;
    struct timeval timeout = {TIMEOUT_SECONDS, 0};
    if (s < 0) fail("socket");
    /* SO_RCVBUF is limited by net.core.rmem_max, and SO_RCVBUFFORCE is not. */
    if (setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes)) fail("SO_RCVBUFFORCE");
    if (setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout)) fail("SO_RCVTIMEO");
    return s;
}

static void receive(struct sockaddr_in group, struct sockaddr_in own, uint64_t bytes) {
    static char data[1 << 16];
    int s = open_socket(), on = 1;
    struct ip_mreq membership = {.imr_multiaddr = group.sin_addr, .imr_interface = own.sin_addr};
    if (bind(s, (void *)&group, sizeof group)) fail("bind");
    if (setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof membership)) fail("IP_ADD_MEMBERSHIP");
    if (setsockopt(s, IPPROTO_UDP, UDP_GRO, &on, sizeof on)) fail("UDP_GRO");
    /* A socket that is bound to the group cannot send from it. */
    int reports = open_socket();
    printf("ready\n");
    fflush(stdout);
    for (uint64_t received = 0, reported = 0; received < bytes;) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        ssize_t part = recvfrom(s, data, sizeof data, 0, (void *)&from, &length);
        if (part < 0) fail("recvfrom");
        received += (uint64_t)part;
        if (received - reported >= REPORT_BYTES || received >= bytes) {
            reported = received;
            if (sendto(reports, &received, sizeof received, 0, (void *)&from, length) < 0) fail("sendto");
        }
    }
}

static uint64_t least(const uint64_t *reported, int receivers) {
    uint64_t result = UINT64_MAX;
    for (int i = 0; i < receivers; i++)
        if (reported[i] < result) result = reported[i];
    return result;
}

static void send_all(struct sockaddr_in group, struct sockaddr_in own, uint64_t bytes, int receivers, int mtu) {
    static char data[BATCH_BYTES_MAX];
    int s = open_socket(), segment = mtu - HEADER_BYTES;
    size_t batch = (size_t)(BATCH_BYTES_MAX / segment * segment);
    struct in_addr known[RECEIVERS_MAX];
    uint64_t reported[RECEIVERS_MAX] = {0}, sent = 0;
    int known_count = 0;
    if (setsockopt(s, IPPROTO_IP, IP_MULTICAST_IF, &own.sin_addr, sizeof own.sin_addr)) fail("IP_MULTICAST_IF");
    if (setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment)) fail("UDP_SEGMENT");
    own.sin_port = 0;
    if (bind(s, (void *)&own, sizeof own)) fail("bind");
    double begin = now();
    while (least(reported, receivers) < bytes) {
        if (sent < bytes && sent < least(reported, receivers) + WINDOW_BYTES) {
            size_t part = bytes - sent < batch ? (size_t)(bytes - sent) : batch;
            if (sendto(s, data, part, 0, (void *)&group, sizeof group) < 0) fail("sendto");
            sent += part;
            continue;
        }
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        uint64_t received;
        if (recvfrom(s, &received, sizeof received, 0, (void *)&from, &length) != sizeof received) fail("recvfrom");
        int i = 0;
        while (i < known_count && known[i].s_addr != from.sin_addr.s_addr) i++;
        if (i == receivers) continue;
        if (i == known_count) known[known_count++] = from.sin_addr;
        reported[i] = received;
    }
    printf("%.9f\n", now() - begin);
}

int main(int argc, char **argv) {
    int sends = argc == 8 && !strcmp(argv[1], "send");
    if (!sends && !(argc == 6 && !strcmp(argv[1], "receive"))) {
        fprintf(stderr, "usage: udp_stream receive GROUP PORT INTERFACE_IP BYTES\n"
                        "       udp_stream send GROUP PORT INTERFACE_IP BYTES RECEIVERS MTU\n");
        return 2;
    }
    struct sockaddr_in group = address(argv[2], atoi(argv[3])), own = address(argv[4], 0);
    uint64_t bytes = strtoull(argv[5], NULL, 10);
    int receivers = sends ? atoi(argv[6]) : 1, mtu = sends ? atoi(argv[7]) : 1500;
    if (!bytes || receivers < 1 || receivers > RECEIVERS_MAX || mtu <= HEADER_BYTES || mtu > BATCH_BYTES_MAX) {
        fprintf(stderr, "udp_stream: a number is outside of its range\n");
        return 2;
    }
    if (sends) send_all(group, own, bytes, receivers, mtu);
    else receive(group, own, bytes);
    return 0;
}
