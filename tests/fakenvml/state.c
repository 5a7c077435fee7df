/* Reads the state file (FAKENVML_STATE), as much of JSON as it needs, into a flat table. */
#include "state.h"

#include <ctype.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST = 8192, PATH_SIZE = 96, TEXT_SIZE = 160, DEEPEST = 16, LARGEST = 1 << 20 };

struct entry {
    char path[PATH_SIZE];
    char text[TEXT_SIZE];
};

static struct entry *entries;
static int count;
static struct stat seen;
static char folder[PATH_MAX] = ".";

struct reader {
    const char *at;
    const char *end;
    struct entry *into;
    int count;
};

static void skip_space(struct reader *r)
{
    while (r->at < r->end && isspace((unsigned char)*r->at))
        r->at++;
}

static bool take(struct reader *r, char wanted)
{
    skip_space(r);
    if (r->at >= r->end || *r->at != wanted)
        return false;
    r->at++;
    return true;
}

static bool read_string(struct reader *r, char *into, size_t size)
{
    size_t length = 0;
    if (!take(r, '"'))
        return false;
    while (r->at < r->end && *r->at != '"') {
        char c = *r->at++;
        if (c == '\\') {
            if (r->at >= r->end)
                return false;
            c = *r->at++;
        }
        if (length + 1 < size)
            into[length++] = c;
    }
    into[length] = '\0';
    return take(r, '"');
}

static bool keep(struct reader *r, const char *path, const char *text)
{
    if (r->count >= MOST)
        return false;
    snprintf(r->into[r->count].path, PATH_SIZE, "%s", path);
    snprintf(r->into[r->count].text, TEXT_SIZE, "%s", text);
    r->count++;
    return true;
}

static bool read_value(struct reader *r, const char *path, int depth);

static bool read_members(struct reader *r, const char *path, int depth, char close)
{
    char below[PATH_SIZE * 2];
    int place = 0;
    if (take(r, close))
        return true;
    do {
        char name[PATH_SIZE];
        if (close == '}') {
            if (!read_string(r, name, sizeof name) || !take(r, ':'))
                return false;
        } else {
            snprintf(name, sizeof name, "%d", place++);
        }
        int length = snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", name);
        if (length >= PATH_SIZE || !read_value(r, below, depth + 1))
            return false;
    } while (take(r, ','));
    return take(r, close);
}

static bool read_word(struct reader *r, const char *path)
{
    char text[TEXT_SIZE];
    size_t length = 0;
    while (r->at < r->end && (isalnum((unsigned char)*r->at) || strchr("+-.", *r->at))) {
        if (length + 1 < sizeof text)
            text[length++] = *r->at;
        r->at++;
    }
    text[length] = '\0';
    if (length == 0)
        return false;
    return strcmp(text, "null") == 0 || keep(r, path, text);
}

static bool read_value(struct reader *r, const char *path, int depth)
{
    char text[TEXT_SIZE];
    if (depth > DEEPEST)
        return false;
    skip_space(r);
    if (take(r, '{'))
        return read_members(r, path, depth, '}');
    if (take(r, '['))
        return read_members(r, path, depth, ']');
    if (r->at < r->end && *r->at == '"')
        return read_string(r, text, sizeof text) && keep(r, path, text);
    return read_word(r, path);
}

static bool load(const char *path)
{
    bool good = false;
    FILE *file = fopen(path, "re");
    char *data = malloc(LARGEST);
    struct entry *fresh = calloc(MOST, sizeof *fresh);
    if (file && data && fresh) {
        size_t size = fread(data, 1, LARGEST, file);
        struct reader r = {.at = data, .end = data + size, .into = fresh};
        good = read_value(&r, "", 0);
        skip_space(&r);
        if (good && r.at == r.end) {
            free(entries);
            entries = fresh;
            count = r.count;
            fresh = NULL;
        } else {
            good = false;
        }
    }
    if (file)
        fclose(file);
    free(data);
    free(fresh);
    return good;
}

bool state_fresh(void)
{
    struct stat now;
    const char *path = getenv("FAKENVML_STATE");
    if (!path || stat(path, &now) != 0)
        return false;
    if (entries && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return true;
    const char *slash = strrchr(path, '/');
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    if (!load(path))
        return entries != NULL; /* what was good before stays */
    seen = now;
    return true;
}

const char *state_folder(void)
{
    return folder;
}

static const char *find(const char *path)
{
    for (int i = 0; i < count; i++)
        if (strcmp(entries[i].path, path) == 0)
            return entries[i].text;
    return NULL;
}

const char *state_text(const char *format, ...)
{
    char path[PATH_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    return find(path);
}

long long state_number(long long missing, const char *format, ...)
{
    char path[PATH_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    const char *text = find(path);
    if (!text)
        return missing;
    if (strcmp(text, "true") == 0)
        return 1;
    if (strcmp(text, "false") == 0)
        return 0;
    return strtoll(text, NULL, 0);
}
