/* The faults that the state file asks for, and the beginning of every call. */
#include "ask.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int users;

/* The parent of a vfork sits in D until its child has opened the FIFO, which nobody writes to; SIGTERM waits, a
 * write or SIGKILL ends it. As posix_spawn does, the child blocks every signal: handlers would run in our memory.
 * It dies with us, so that nothing stays in our control group. */
static void sit_in_d(const char *fifo)
{
    sigset_t all, before;
    pid_t we = getpid();
    mkfifo(fifo, 0600);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    pid_t child = vfork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == we)
            open(fifo, O_RDONLY | O_CLOEXEC);
        _exit(0);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (child > 0)
        waitpid(child, NULL, 0);
}

/* On a frozen file system this sits in D, and not even SIGKILL ends it before it is thawed. */
static void write_to(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    if (write(file, "x", 1) != 1)
        perror(path);
    close(file);
}

nvmlReturn_t fault(const char *call)
{
    const char *path;
    if (!state_fresh(strcmp(call, "nvmlInitWithFlags") == 0))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    long long milliseconds = state_number(0, "calls.%s.slow_ms", call);
    if (milliseconds > 0)
        usleep((useconds_t)(milliseconds * 1000));
    while (state_number(0, "calls.%s.hang", call)) {
        sleep(1);
        state_fresh(false);
    }
    if ((path = state_text("calls.%s.d_state", call)) != NULL)
        sit_in_d(path);
    if ((path = state_text("calls.%s.write_to", call)) != NULL)
        write_to(path);
    return (nvmlReturn_t)state_number(NVML_SUCCESS, "calls.%s.error", call);
}

nvmlReturn_t ask_system(const char *call, const void *out)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t result = fault(call);
    if (result != NVML_SUCCESS)
        return result;
    return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

int place_of(nvmlDevice_t device)
{
    return (int)(intptr_t)device - 1;
}

static bool known(int place)
{
    return place >= 0 && place < MOST_GPUS && GPU_TEXT(place, "uuid");
}

bool there(int place)
{
    return known(place) && !GPU_NUMBER(place, 0, "missing");
}

nvmlReturn_t health_of(const char *call, int place)
{
    if (!there(place) || GPU_NUMBER(place, 0, "lost"))
        return NVML_ERROR_GPU_IS_LOST;
    return (nvmlReturn_t)GPU_NUMBER(place, NVML_SUCCESS, "errors.%s", call);
}

nvmlReturn_t ask(const char *call, nvmlDevice_t device, const void *out)
{
    nvmlReturn_t result = ask_system(call, out);
    if (result != NVML_SUCCESS)
        return result;
    return known(place_of(device)) ? health_of(call, place_of(device)) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t give_text(const char *text, char *into, unsigned size)
{
    if (!text)
        return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(text) + 1 > size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(into, text);
    return NVML_SUCCESS;
}

nvmlReturn_t give_name(const char *call, nvmlDevice_t device, const char *key, char *into, unsigned size)
{
    nvmlReturn_t result = ask(call, device, into);
    return result != NVML_SUCCESS ? result : give_text(state_text("gpus.%d.%s", place_of(device), key), into, size);
}

nvmlReturn_t give_number(const char *call, nvmlDevice_t device, const char *key, unsigned *into)
{
    nvmlReturn_t result = ask(call, device, into);
    if (result != NVML_SUCCESS)
        return result;
    if (!state_text("gpus.%d.%s", place_of(device), key))
        return NVML_ERROR_NOT_SUPPORTED;
    *into = (unsigned)state_number(0, "gpus.%d.%s", place_of(device), key);
    return NVML_SUCCESS;
}
