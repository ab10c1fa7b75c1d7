// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/doorbell-net/doorbell"
)

// TestEachKnowsLaunchers: a program that any launcher started as one rank of several is that rank, and does not run all
// ranks in each process; a shell that a launcher gave is no such job.
func TestEachKnowsLaunchers(t *testing.T) {
	var ran atomic.Int32
	count := func(context.Context, *doorbell.Comm) error { ran.Add(1); return nil }
	for k, v := range map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
		"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_NAMESPACE": "ns7"} {
		t.Setenv(k, v)
	}
	if err := doorbell.Each(t.Context(), 2, count); err != nil || ran.Load() != 2 {
		t.Errorf("a job of one: %d ranks ran, %v", ran.Load(), err)
	}
	t.Setenv("OMPI_COMM_WORLD_SIZE", "2") // on two hosts, and no address is given
	if err := doorbell.Each(t.Context(), 2, count); err == nil || !strings.Contains(err.Error(), "across hosts give DOORBELL_ADDR=HOST:PORT") || ran.Load() != 2 {
		t.Errorf("rank 0 of 2: %d ranks ran, %v", ran.Load(), err)
	}
}
