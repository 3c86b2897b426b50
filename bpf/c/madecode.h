/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * A word of each frame in code that a process makes at run time. Of such a frame the
 * address does not always tell what it runs: an interpreter's is the same for all that it
 * interprets, but each of its frames has a word that tells. Where that word is, the agent
 * says of each process whose runtime it knows (struct process_space); of all others nothing
 * is read.
 *
 * The word follows the frame's address, in which FRAME_WORD is set.
 */
#ifndef SPANFLAME_MADECODE_H
#define SPANFLAME_MADECODE_H

/* What says whether a frame has the word, if the runtime marks its own frames otherwise:
 * V8 has a small integer, which is even, in their first slot, and else a pointer + 1. */
#define MARKED_SLOT 8

/* Reads the word of the frame that the walker is in. False if there is none. */
static __always_inline bool read_frame_word(struct walker *w, u64 *word)
{
	u64 mark, at = w->fp - 8 * (u64)(w->capture_slot & 15);

	if (!w->capture_slot || !w->fp || (w->fp & 7) || w->fp < w->sp)
		return false;
	if (w->capture_marked && (!read_word(w, &mark, w->fp - MARKED_SLOT) || !(mark & 1)))
		return false;
	if (!read_word(w, word, at) || !*word)
		return false;
	if (w->capture_deref) {
		u64 p = *word + w->capture_deref;

		if (bpf_probe_read_user(word, sizeof(*word), (void *)p))
			return false;
	}
	return *word != 0;
}

#endif
