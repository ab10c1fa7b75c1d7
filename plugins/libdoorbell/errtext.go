// SPDX-License-Identifier: Apache-2.0

package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../include
#define DOORBELL_TYPES_ONLY
#include "doorbell.h"
#include <pthread.h>
#include <stdlib.h>

// A thread's last error; a call from C runs on the thread of C that made it. It is no _Thread_local: a library that is opened
// late has a few hundred bytes of those.
static pthread_key_t last_error;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_key(void) { pthread_key_create(&last_error, free); }

static void set_error(char *text) {
	pthread_once(&once, make_key);
	free(pthread_getspecific(last_error));
	pthread_setspecific(last_error, text);
}

const char *doorbell_last_error(void) {
	pthread_once(&once, make_key);
	const char *text = pthread_getspecific(last_error);
	return text ? text : "";
}

const char *doorbell_code_text(int code) {
	switch ((enum doorbell_code)code) {
	case DOORBELL_OK: return "done";
	case DOORBELL_TIMEOUT: return "no end within the timeout";
	case DOORBELL_INVALID: return "an argument is not accepted";
	case DOORBELL_PEER_LOST: return "a rank is lost, or has left";
	case DOORBELL_REMOTE_ERROR: return "refused after it was posted";
	case DOORBELL_ABORTED: return "the communicator was aborted";
	case DOORBELL_REVOKED: return "the communicator was revoked";
	case DOORBELL_CLOSED: return "closed";
	case DOORBELL_NOT_SUPPORTED: return "not built yet";
	case DOORBELL_CANNOT: return "the network or device cannot";
	case DOORBELL_NOT_AVAILABLE: return "the device is not here";
	case DOORBELL_OUT_OF_MEMORY: return "out of memory";
	case DOORBELL_FAILED: return "failed";
	case DOORBELL_BUSY: return "in use";
	case DOORBELL_DISAGREE: return "the ranks do not agree";
	case DOORBELL_REFUSED: return "another rank refused";
	case DOORBELL_DENIED: return "another rank has another token";
	case DOORBELL_CUT_OFF: return "this rank is cut off";
	case DOORBELL_DEVICE_FAILED: return "the GPU's driver or a kernel failed";
	case DOORBELL_SYSTEM: return "the operating system refused";
	case DOORBELL_BROKEN: return "a mistake in the library";
	}
	return "unknown code";
}
*/
import "C"

// done is what an exported function returns for an error, whose text it keeps for the calling thread.
func done(err error) C.int {
	if err != nil {
		C.set_error(C.CString(err.Error()))
	}
	return C.int(codeOf(err))
}
