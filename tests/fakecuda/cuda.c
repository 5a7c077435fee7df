/* The part of the CUDA driver API that the preflight uses, over host memory. Signatures: cuda.h.
 *
 * FAKECUDA_CARDS="0000:17:00,0000:3d:00" are the devices, in CUDA's order.
 * FAKECUDA_FAIL="cuMemAlloc_v2@1=2" lets a call on device 1 return 2; FAKECUDA_HANG="cuInit@0" never returns from one;
 * FAKECUDA_WRONG=1 lets the kernel on device 1 compute nothing. A call on no device is one on device 0.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int current = 0;

static int told(const char *variable, const char *call, int device) {
    const char *said = getenv(variable);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "%s@%d", call, device);
    size_t length = strlen(wanted);
    if (!said || strncmp(said, wanted, length) != 0)
        return 0;
    return said[length] == '=' ? atoi(said + length + 1) : 1;
}

static int enter(const char *call, int device) {
    if (told("FAKECUDA_HANG", call, device))
        for (;;)
            pause();
    return told("FAKECUDA_FAIL", call, device);
}

#define ENTER(device) do { int code = enter(__func__, device); if (code) return code; } while (0)

static const char *card(int device) {
    const char *at = getenv("FAKECUDA_CARDS");
    for (; at && device > 0; device--)
        if ((at = strchr(at, ',')))
            at++;
    return at && *at ? at : NULL;
}

int cuInit(unsigned flags) {
    (void)flags;
    ENTER(0);
    const char *order = getenv("CUDA_DEVICE_ORDER");
    return order && strcmp(order, "PCI_BUS_ID") == 0 && !getenv("CUDA_VISIBLE_DEVICES") ? 0 : 999;
}

int cuDeviceGetCount(int *count) {
    for (*count = 0; card(*count); ++*count)
        ;
    return 0;
}

int cuDeviceGet(int *device, int number) {
    *device = number;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    unsigned domain, bus, slot;
    if (sscanf(card(device), "%x:%x:%x", &domain, &bus, &slot) != 3)
        return 1;
    *value = attribute == 50 ? (int)domain : attribute == 33 ? (int)bus : attribute == 34 ? (int)slot : -1;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER(device);
    *context = (void *)(intptr_t)(device + 1);
    return 0;
}

int cuCtxSetCurrent(void *context) {
    current = (int)(intptr_t)context - 1;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return 0;
}

int cuMemAlloc_v2(uint64_t *memory, size_t bytes) {
    ENTER(current);
    *memory = (uint64_t)(uintptr_t)malloc(bytes);
    return 0;
}

int cuMemFree_v2(uint64_t memory) {
    free((void *)(uintptr_t)memory);
    return 0;
}

int cuMemsetD32_v2(uint64_t memory, unsigned value, size_t count) {
    for (size_t at = 0; at < count; at++)
        ((uint32_t *)(uintptr_t)memory)[at] = value;
    return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return 0;
}

int cuModuleLoadData(void **module, const void *image) {
    ENTER(current);
    *module = (void *)image;
    return strstr(image, ".entry invert(") ? 0 : 218;
}

int cuModuleUnload(void *module) {
    (void)module;
    return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return strcmp(name, "invert") ? 500 : 0;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    (void)function, (void)gx, (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    ENTER(current);
    const char *wrong = getenv("FAKECUDA_WRONG");
    if (wrong && atoi(wrong) == current)
        return 0;
    uint32_t *words = (uint32_t *)(uintptr_t)*(uint64_t *)arguments[0];
    for (unsigned at = 0; at < bx; at++)
        words[at] = ~words[at];
    return 0;
}

int cuCtxSynchronize(void) {
    return 0;
}

int cuGetErrorString(int code, const char **text) {
    *text = code == 2 ? "out of memory" : code == 999 ? "unknown error" : NULL;
    return 0;
}
