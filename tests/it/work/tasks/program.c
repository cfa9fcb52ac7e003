/* What the tests run on nodes: an allreduce whose result every rank checks, then what it is told to do. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void for_ever(void) {
    for (;;) pause();
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long own = (long)(rank + 1) * (rank + 1), sum = 0, want = 0;
    MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (long i = 1; i <= size; i++) want += i * i;
    printf("rank %d of %d: sum %ld uid %d\n", rank, size, sum, (int)getuid());
    fflush(stdout);
    if (sum != want) return 99;
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "wait")) {
        while (access(argv[2], F_OK)) usleep(20000);
        MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        printf("rank %d late: sum %ld\n", rank, sum);
    } else if (!strcmp(what, "stay")) {
        /* Leaves its group, its session and its parent, and hears no signal that can be ignored. */
        signal(SIGTERM, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        if (!fork()) {
            setsid();
            if (fork()) _exit(0);
            for_ever();
        }
        printf("rank %d stays\n", rank);
        fflush(stdout);
        for_ever();
    } else if (!strcmp(what, "say")) {
        fprintf(stderr, "rank %d: [%s]\n", rank, argv[2]);
    }
    MPI_Finalize();
    return !strcmp(what, "exit") ? atoi(argv[2]) : 0;
}
