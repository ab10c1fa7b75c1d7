// SPDX-License-Identifier: Apache-2.0

package main

/*
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
*/
import "C"

// done is what an exported function returns for an error, whose text it keeps for the calling thread.
func done(err error) C.int {
	if err != nil {
		C.set_error(C.CString(err.Error()))
	}
	return C.int(codeOf(err))
}
