// The limit of any scan: libjpeg-turbo's decode and integer sums per channel, in C threads over the packed file.
//
//   cc -O3 -march=native limit.c -ljpeg -lpthread -o limit
//   ./limit PACKED OFFSETS SIZES COUNT THREADS
//
// OFFSETS and SIZES are files of COUNT int64. Prints seconds of the scan, then the sums and the sums of squares.

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h>

enum { CHUNK = 16 };

static const unsigned char *packed;
static int64_t *offsets, *sizes, count;
static atomic_int_fast64_t next_chunk;

static void *scan(void *totals_of_thread) {
    uint64_t *totals = totals_of_thread;  // [6]: sums, sums of squares
    struct jpeg_error_mgr errors;
    struct jpeg_decompress_struct image = {.err = jpeg_std_error(&errors)};
    jpeg_create_decompress(&image);
    unsigned char *pixels = NULL;
    uint32_t *columns = NULL;
    size_t room = 0;
    int64_t first;
    while ((first = atomic_fetch_add(&next_chunk, CHUNK)) < count) {
        for (int64_t index = first; index < first + CHUNK && index < count; index++) {
            jpeg_mem_src(&image, packed + offsets[index], sizes[index]);
            jpeg_read_header(&image, TRUE);
            image.out_color_space = JCS_RGB;
            jpeg_start_decompress(&image);
            size_t width = (size_t)image.output_width * 3;
            if (width * 8 > room) {
                room = width * 8;
                pixels = realloc(pixels, room);
                columns = realloc(columns, room * sizeof *columns);
            }
            uint32_t *restrict sum = columns, *restrict square = columns + width;
            memset(columns, 0, 2 * width * sizeof *columns);
            while (image.output_scanline < image.output_height) {
                JSAMPROW rows[8];
                for (int row = 0; row < 8; row++) rows[row] = pixels + row * width;
                JDIMENSION got = jpeg_read_scanlines(&image, rows, 8);
                for (JDIMENSION row = 0; row < got; row++)
                    for (size_t x = 0; x < width; x++) {
                        uint32_t value = rows[row][x];
                        sum[x] += value;
                        square[x] += value * value;
                    }
            }
            jpeg_finish_decompress(&image);
            for (size_t x = 0; x < width; x++) {
                totals[x % 3] += sum[x];
                totals[3 + x % 3] += square[x];
            }
        }
    }
    jpeg_destroy_decompress(&image);
    free(pixels);
    free(columns);
    return NULL;
}

static void *mapped(const char *path) {
    int file = open(path, O_RDONLY);
    off_t size = lseek(file, 0, SEEK_END);
    void *content = file < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    if (content == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    return content;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    packed = mapped(argv[1]);
    offsets = mapped(argv[2]);
    sizes = mapped(argv[3]);
    count = atoll(argv[4]);
    int threads = atoi(argv[5]);
    pthread_t handles[threads];
    uint64_t totals[threads][8];
    memset(totals, 0, sizeof totals);
    struct timespec start, stop;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int thread = 0; thread < threads; thread++) pthread_create(&handles[thread], NULL, scan, totals[thread]);
    for (int thread = 0; thread < threads; thread++) pthread_join(handles[thread], NULL);
    clock_gettime(CLOCK_MONOTONIC, &stop);
    for (int thread = 1; thread < threads; thread++)
        for (int cell = 0; cell < 6; cell++) totals[0][cell] += totals[thread][cell];
    printf("%.6f", (stop.tv_sec - start.tv_sec) + (stop.tv_nsec - start.tv_nsec) * 1e-9);
    for (int cell = 0; cell < 6; cell++) printf(" %" PRIu64, totals[0][cell]);
    printf("\n");
    return 0;
}
