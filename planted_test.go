// SPDX-License-Identifier: Apache-2.0

package doorbell_test

const plantEnv = "TEST_PLANT"
