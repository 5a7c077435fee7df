/* What of NVML's binary interface the fake driver keeps: nvml.h of CUDA 12, checked against nvidia-ml-py. */
#ifndef FAKENVML_ABI_H
#define FAKENVML_ABI_H

#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

enum { NVML_INIT_FLAG_NO_GPUS = 1 };

/* A versioned struct carries its size and its version: nvmlMemory_v2 is 0x02000028. */
#define VERSION(type, number) ((unsigned)(sizeof(type) | (number) << 24))

struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct utilization {
    unsigned gpu, memory;
};

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct temperature {
    unsigned version, sensor;
    int temperature;
};

struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency;
    uint32_t type, result;
    union {
        double number;
        unsigned ui;
        unsigned long long ull;
    } value;
};

struct row_histogram {
    unsigned max, high, partial, low, none;
};

struct fabric {
    unsigned char cluster[16];
    nvmlReturn_t status;
    unsigned clique;
    unsigned char state;
};

struct fabric_v2 {
    unsigned version;
    unsigned char cluster[16];
    nvmlReturn_t status;
    unsigned clique;
    unsigned char state;
    unsigned health;
};

struct fabric_v3 {
    unsigned version;
    unsigned char cluster[16];
    nvmlReturn_t status;
    unsigned clique;
    unsigned char state;
    unsigned health;
    unsigned char health_summary;
};

_Static_assert(sizeof(struct pci_info) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(struct process_info) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(struct field_value) == 40, "nvmlFieldValue_t");
_Static_assert(VERSION(struct memory_v2, 2) == 0x02000028, "nvmlMemory_v2");
_Static_assert(VERSION(struct temperature, 1) == 0x0100000c, "nvmlTemperature_v1");
_Static_assert(VERSION(struct fabric_v2, 2) == 0x02000024, "nvmlGpuFabricInfo_v2");
_Static_assert(VERSION(struct fabric_v3, 3) == 0x03000028, "nvmlGpuFabricInfo_v3");

#endif
