#include "utils/ctl_trace.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double number_of(const json_t *object, const char *key)
{
    double number = json_number_value(json_object_get(object, key));
    return isfinite(number) && number >= 0 ? number : 0;
}

static void text_of(const json_t *object, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(object, key));
    size_t i = 0;
    for (; text && text[i] && i + 1 < size; i++)
        out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    out[i] = '\0';
}

/* A span of time: "wait" opens an operation, the one behind it with the same number completes it. */
static void take_event(struct ctl_trace *trace, const json_t *event, bool *is_open)
{
    const json_t *args = json_object_get(event, "args");
    struct ctl_trace_op *op = &trace->ops[trace->count];
    char phase[4], name[16];
    text_of(event, "ph", phase, sizeof phase);
    text_of(event, "name", name, sizeof name);
    if (strcmp(phase, "X"))
        return;
    if (!strcmp(name, "wait")) {
        *op = (struct ctl_trace_op){.seq = number_of(args, "seq"),
                                    .start_us = number_of(event, "ts"),
                                    .wait_us = number_of(event, "dur"),
                                    .last_rank = number_of(args, "last_rank")};
        *is_open = true;
    } else if (*is_open && number_of(args, "seq") == op->seq) {
        op->work_us = number_of(event, "dur");
        op->count = number_of(args, "count");
        snprintf(op->name, sizeof op->name, "%s", name);
        text_of(args, "op", op->op, sizeof op->op);
        text_of(args, "dtype", op->dtype, sizeof op->dtype);
        text_of(args, "result", op->result, sizeof op->result);
        text_of(args, "tag", op->tag, sizeof op->tag);
        trace->count++;
        *is_open = false;
    }
}

int ctl_trace_parse(const char *text, struct ctl_trace *trace)
{
    json_t *root = json_loads(text, 0, NULL), *events = json_object_get(root, "traceEvents");
    bool is_open = false;
    *trace = (struct ctl_trace){.ops = calloc(CTL_TRACE_MAX, sizeof *trace->ops)};
    int rc = !trace->ops ? -ENOMEM : !json_is_array(events) ? -EINVAL : 0;
    for (size_t i = 0; !rc && i < json_array_size(events) && trace->count < CTL_TRACE_MAX; i++)
        take_event(trace, json_array_get(events, i), &is_open);
    json_decref(root);
    if (rc) {
        ctl_trace_fini(trace);
        return rc;
    }
    double first = trace->count ? trace->ops[0].start_us : 0;
    for (size_t i = 0; i < trace->count; i++)
        first = fmin(first, trace->ops[i].start_us);
    for (size_t i = 0; i < trace->count; i++)
        trace->ops[i].start_us -= first;
    return 0;
}

void ctl_trace_fini(struct ctl_trace *trace)
{
    free(trace->ops);
    *trace = (struct ctl_trace){0};
}

bool ctl_trace_is_ok(const struct ctl_trace_op *op)
{
    return !strcmp(op->result, "ok");
}
