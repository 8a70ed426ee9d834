/*
 * The two fences of a put, named for what they order. Ordinary stores to cached memory are ordered by the
 * release of the word alone; but the kernels may have used non-temporal stores, and a window may be mapped
 * write-combining, and neither obeys a release.
 */
#ifndef NTBM_FENCE_H
#define NTBM_FENCE_H

/* All stores before it are visible before any store after it, non-temporal and write-combined ones too. Pairs
 * with the receiver's acquire load of the word. */
static inline void ntbm_fence_before_word(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#elif defined(__aarch64__)
    __asm__ volatile("dsb st" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Drains the write-combining buffer that holds the word: without it the word leaves when the buffer happens
 * to be needed for something else. It is not delivery; that is for the peer to acknowledge. */
static inline void ntbm_fence_push_word(void)
{
    ntbm_fence_before_word();
}

#endif
