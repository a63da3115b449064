/* What every load generator needs to speak NATS: dial, write, wait for a PONG, tell the time. */
#ifndef WIRE_H
#define WIRE_H

enum { SILENCE_SECONDS_MAX = 20 };

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECT                                                                      \
    "CONNECT {\"verbose\":false,\"pedantic\":false,\"tls_required\":false,"          \
    "\"headers\":true,\"no_responders\":true,\"lang\":\"c\",\"version\":\"1\","      \
    "\"protocol\":1}\r\n"

static inline double now_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static inline void die(const char *what) {
    perror(what);
    exit(2);
}

static inline void write_all(int fd, const char *bytes, size_t length) {
    while (length) {
        ssize_t written = write(fd, bytes, length);
        if (written < 0 && errno != EINTR && errno != EAGAIN) die("write");
        if (written <= 0) continue;
        bytes += written;
        length -= written;
    }
}

static inline void write_text(int fd, const char *text) { write_all(fd, text, strlen(text)); }

/* Read until `word` has come; whatever precedes it (INFO, PING) is not ours to look at. */
static inline void read_until(int fd, const char *word) {
    char bytes[16384];
    size_t length = 0;
    do {
        ssize_t got = read(fd, bytes + length, sizeof bytes - 1 - length);
        if (got <= 0) die(word);
        length += got;
        bytes[length] = 0;
        if (strstr(bytes, "-ERR")) {
            fprintf(stderr, "server: %s", strstr(bytes, "-ERR"));
            exit(2);
        }
    } while (!strstr(bytes, word));
}

/* Return once the server has handled everything written before. */
static inline void ping(int fd) {
    write_text(fd, "PING\r\n");
    read_until(fd, "PONG\r\n");
}

static inline int dial(const char *host, int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("host: an IPv4 address is needed");
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct timeval silence = {.tv_sec = SILENCE_SECONDS_MAX}; /* what was lost never comes */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
    read_until(fd, "\r\n");
    write_text(fd, CONNECT);
    ping(fd);
    return fd;
}

#endif
