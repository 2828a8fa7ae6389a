/* LD_PRELOAD library that sets the clock FAST_CLOCK seconds ahead.
 *
 * Build with: cc -shared -fPIC -o fast_clock.so fast_clock.c
 * Only the time of day changes; monotonic clocks don't.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t ahead(void)
{
    const char *seconds = getenv("FAST_CLOCK");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int status = syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead();
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int status = syscall(SYS_gettimeofday, now, zone);
    if (status == 0)
        now->tv_sec += ahead();
    return status;
}

time_t time(time_t *now)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now)
        *now = exact.tv_sec;
    return exact.tv_sec;
}
