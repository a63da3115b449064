/* reqload: the round trip of a request, one in flight. The requester does as real clients do:
 * one wildcard inbox, and a reply subject of its own for every request. The responder has its
 * own connection and thread.
 *
 * usage: reqload HOST PORT REQUESTS SIZE
 * prints the p50, p99 and longest round trip in microseconds, a tenth more having warmed up.
 *
 * Exit 0 only if every reply came on the subject that its request named, whole.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "wire.h"

enum { BUFFER_BYTES = 2 << 20 };
#define INBOX "_INBOX.pEnStOcKbEnCh0123456789"

static const char *host;
static int port, size;
static char *payload;

/* One message at a time: with one request in flight there is never a second to keep. */
typedef struct {
    int fd;
    char subject[128], reply[128];
    size_t length;
    char bytes[BUFFER_BYTES];
} Reader;

static void drop_front(Reader *reader, size_t bytes) {
    reader->length -= bytes;
    memmove(reader->bytes, reader->bytes + bytes, reader->length);
}

/* Take the message at the front if it is all there; return its payload's length, or -1. */
static int take_message(Reader *reader) {
    char *end = memmem(reader->bytes, reader->length, "\r\n", 2);
    if (!end) return -1;
    size_t line_bytes = end + 2 - reader->bytes;
    if (!strncmp(reader->bytes, "PING\r\n", 6) || !strncmp(reader->bytes, "INFO ", 5)) {
        if (reader->bytes[0] == 'P') write_text(reader->fd, "PONG\r\n");
        drop_front(reader, line_bytes);
        return take_message(reader);
    }
    int payload_bytes;
    *end = 0;
    reader->reply[0] = 0;
    if (sscanf(reader->bytes, "MSG %127s %*d %127s %d", reader->subject, reader->reply,
               &payload_bytes) != 3 &&
        sscanf(reader->bytes, "MSG %127s %*d %d", reader->subject, &payload_bytes) != 2) {
        fprintf(stderr, "not a message: %s\n", reader->bytes);
        exit(1);
    }
    *end = '\r';
    if (reader->length < line_bytes + payload_bytes + 2) return -1;
    drop_front(reader, line_bytes + payload_bytes + 2);
    return payload_bytes;
}

static int read_message(Reader *reader) {
    int payload_bytes;
    while ((payload_bytes = take_message(reader)) < 0) {
        ssize_t got = read(reader->fd, reader->bytes + reader->length,
                           sizeof reader->bytes - reader->length);
        if (got <= 0) die("no reply");
        reader->length += got;
    }
    return payload_bytes;
}

static void publish(int fd, char *buffer, const char *subject, const char *reply) {
    int length = sprintf(buffer, "PUB %s %s%d\r\n", subject, reply, size);
    memcpy(buffer + length, payload, size);
    memcpy(buffer + length + size, "\r\n", 2);
    write_all(fd, buffer, length + size + 2);
}

static Reader *open_reader(const char *subscribe) {
    Reader *reader = calloc(1, sizeof *reader);
    reader->fd = dial(host, port);
    write_text(reader->fd, subscribe);
    ping(reader->fd);
    return reader;
}

static void *respond(void *argument) {
    Reader *reader = argument;
    char *buffer = malloc(size + 512);
    while (read_message(reader) >= 0) publish(reader->fd, buffer, reader->reply, "");
    return NULL;
}

static double round_trip_seconds(Reader *reader, char *buffer, long number) {
    char reply[128];
    int length = sprintf(reply, INBOX ".%08lx", number);
    strcpy(reply + length, " ");
    double start = now_seconds();
    publish(reader->fd, buffer, "bench.service", reply);
    int payload_bytes = read_message(reader);
    double seconds = now_seconds() - start;
    reply[length] = 0;
    if (strcmp(reply, reader->subject) || payload_bytes != size) {
        fprintf(stderr, "reply to %s came on %s, %d bytes\n", reply, reader->subject,
                payload_bytes);
        exit(1);
    }
    return seconds;
}

static int by_value(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: reqload HOST PORT REQUESTS SIZE\n");
        return 2;
    }
    host = argv[1];
    port = atoi(argv[2]);
    long requests = atol(argv[3]);
    size = atoi(argv[4]);
    payload = malloc(size + 1);
    memset(payload, 'x', size);
    char *buffer = malloc(size + 512);
    double *seconds = malloc(requests * sizeof *seconds);

    pthread_t responder;
    Reader *reader = open_reader("SUB " INBOX ".* 1\r\n");
    pthread_create(&responder, NULL, respond, open_reader("SUB bench.service 1\r\n"));
    for (long k = 0; k < requests / 10; k++) round_trip_seconds(reader, buffer, requests + k);
    for (long k = 0; k < requests; k++) seconds[k] = round_trip_seconds(reader, buffer, k);

    qsort(seconds, requests, sizeof *seconds, by_value);
    printf("requests=%ld size=%d p50us=%.1f p99us=%.1f max_us=%.1f\n", requests, size,
           seconds[requests / 2] * 1e6, seconds[requests * 99 / 100] * 1e6,
           seconds[requests - 1] * 1e6);
    return 0;
}
