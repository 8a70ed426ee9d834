/*
 * A doubly linked list threaded through the objects themselves, so that moving an object from one list to
 * another never allocates. The head is a node of the ring; an unlinked node points at itself.
 */
#ifndef UT_LIST_H
#define UT_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct ut_list {
    struct ut_list *prev, *next;
};

#define UT_CONTAINER(ptr, type, field) ((type *)((char *)(ptr)-offsetof(type, field)))

/* Walks a list; `it` may be removed from it inside the loop. */
#define UT_LIST_EACH(head, type, field, it)                           \
    for (type *it = UT_CONTAINER((head)->next, type, field),          \
              *it##_next = UT_CONTAINER(it->field.next, type, field); \
         &it->field != (head); it = it##_next, it##_next = UT_CONTAINER(it->field.next, type, field))

static inline void ut_list_init(struct ut_list *node)
{
    node->prev = node->next = node;
}

static inline bool ut_list_empty(const struct ut_list *head)
{
    return head->next == head;
}

static inline void ut_list_append(struct ut_list *head, struct ut_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Takes the node out of whatever list it is in; harmless on an unlinked one. */
static inline void ut_list_remove(struct ut_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    ut_list_init(node);
}

#endif
