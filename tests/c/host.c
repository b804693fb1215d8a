/* A C11 host of dlkern: runs ops on its own memory and reads the errors. Prints "ok" and exits 0.
 */
#include <dlkern/dlkern.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

static void expect(int ok, const char* what, int line) {
  if (ok) return;
  fprintf(stderr, "host.c:%d: %s (last error: %s)\n", line, what, dlk_last_error());
  ++failures;
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

static DLTensor cpu_tensor(float* data, int ndim, int64_t* shape) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape; /* strides stay NULL: contiguous */
  return t;
}

static int close_to(float got, double want) { return fabs(got - want) < 1e-5 * (1 + fabs(want)); }

static void test_version(void) {
  dlk_build_info info = {0};
  info.struct_size = sizeof info;
  EXPECT(dlk_version() == DLK_VERSION);
  EXPECT(dlk_get_build_info(&info) == DLK_SUCCESS);
  EXPECT(strcmp(info.gpu, "none") == 0 || strcmp(info.gpu, "cuda") == 0 ||
         strcmp(info.gpu, "hip") == 0);
  EXPECT(dlk_device_count() >= 0);

  /* A host compiled with an older, shorter struct gets what that one holds. */
  dlk_build_info older = {0};
  older.struct_size = offsetof(dlk_build_info, gpu);
  EXPECT(dlk_get_build_info(&older) == DLK_SUCCESS);
  EXPECT(older.version != NULL && older.gpu == NULL);
  EXPECT(older.struct_size == offsetof(dlk_build_info, gpu));
  older.struct_size = 0;
  EXPECT(dlk_get_build_info(&older) == DLK_INVALID_ARGUMENT);
}

static void test_softmax(void) {
  float x[6] = {0, 1, 2, 1000, 1000, 1000};
  float y[6] = {0};
  int64_t shape[2] = {2, 3};
  DLTensor tx = cpu_tensor(x, 2, shape), ty = cpu_tensor(y, 2, shape);
  const double sum = 1 + exp(1) + exp(2);

  EXPECT(dlk_softmax_forward(&tx, &ty, NULL, NULL) == DLK_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    EXPECT(close_to(y[i], exp(i) / sum));
    EXPECT(close_to(y[3 + i], 1.0 / 3));
  }

  dlk_softmax_params params = DLK_SOFTMAX_PARAMS_INIT;
  params.axis = 0;
  EXPECT(dlk_softmax_forward(&tx, &ty, &params, NULL) == DLK_SUCCESS);
  EXPECT(y[0] == 0 && y[3] == 1);
}

/* Plan first, then run with the workspace that the plan asks for. */
static void test_conv(void) {
  float x[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8}, w[4] = {1, 1, 1, 1}, b[1] = {0.5f}, y[4] = {0};
  int64_t x_shape[4] = {1, 1, 3, 3}, w_shape[4] = {1, 1, 2, 2}, b_shape[1] = {1}, y_shape[4] = {0};
  DLTensor tx = cpu_tensor(x, 4, x_shape), tw = cpu_tensor(w, 4, w_shape);
  DLTensor tb = cpu_tensor(b, 1, b_shape);
  dlk_conv_params params = DLK_CONV_PARAMS_INIT;
  dlk_launch launch = DLK_LAUNCH_INIT;
  dlk_plan plan = {0};
  plan.struct_size = sizeof plan;

  EXPECT(dlk_conv_output_shape(&tx, &tw, &params, y_shape) == DLK_SUCCESS);
  EXPECT(y_shape[0] == 1 && y_shape[1] == 1 && y_shape[2] == 2 && y_shape[3] == 2);
  DLTensor ty = cpu_tensor(y, 4, y_shape);

  launch.flags = DLK_LAUNCH_PLAN_ONLY;
  EXPECT(dlk_conv_forward(&tx, &tw, &tb, &ty, &params, &launch) == DLK_SUCCESS);
  EXPECT(dlk_explain_last(&plan) == DLK_SUCCESS);
  EXPECT(plan.implementation[0] != 0 && y[0] == 0);

  launch.flags = 0;
  launch.workspace_bytes = (plan.workspace_bytes + 255) / 256 * 256;
  if (launch.workspace_bytes) launch.workspace = aligned_alloc(256, launch.workspace_bytes);
  EXPECT(dlk_conv_forward(&tx, &tw, &tb, &ty, &params, &launch) == DLK_SUCCESS);
  EXPECT(close_to(y[0], 8.5) && close_to(y[1], 12.5) && close_to(y[2], 20.5) &&
         close_to(y[3], 24.5));

  params.groups = 2;
  EXPECT(dlk_conv_forward(&tx, &tw, &tb, &ty, &params, &launch) == DLK_INVALID_ARGUMENT);
  EXPECT(strstr(dlk_last_error(), "groups") != NULL);
  free(launch.workspace);
}

static void test_tuning(void) {
  char choice[8] = "?";
  dlk_plan plan = {0}, older = {0};
  EXPECT(dlk_set_tuning("key", "choice1") == DLK_SUCCESS);
  EXPECT(dlk_get_tuning("key", choice, sizeof choice) == DLK_SUCCESS);
  EXPECT(strcmp(choice, "choice1") == 0);
  EXPECT(dlk_get_tuning("key", choice, sizeof choice - 1) == DLK_INVALID_ARGUMENT);
  EXPECT(dlk_set_tuning("key", NULL) == DLK_SUCCESS);
  EXPECT(dlk_get_tuning("key", choice, sizeof choice) == DLK_SUCCESS && choice[0] == 0);

  plan.struct_size = sizeof plan;
  EXPECT(dlk_explain_last(&plan) == DLK_SUCCESS);
  EXPECT(plan.tuning_key[0] == 0 && plan.candidates[0] == 0);
  older.struct_size = offsetof(dlk_plan, tuning_key);
  EXPECT(dlk_explain_last(&older) == DLK_SUCCESS && older.tuning_key == NULL);
}

static void test_errors(void) {
  float x[6] = {0}, y[6];
  int64_t shape[2] = {2, 3}, other[2] = {3, 2};
  DLTensor tx = cpu_tensor(x, 2, shape), ty = cpu_tensor(y, 2, shape);
  memset(y, 0x7f, sizeof y);
  float before[6];
  memcpy(before, y, sizeof y);

  EXPECT(dlk_softmax_forward(NULL, &ty, NULL, NULL) == DLK_INVALID_ARGUMENT);
  EXPECT(strstr(dlk_last_error(), "softmax: x") != NULL);

  ty.shape = other;
  EXPECT(dlk_softmax_forward(&tx, &ty, NULL, NULL) == DLK_INVALID_ARGUMENT);
  EXPECT(strstr(dlk_last_error(), "y.shape") != NULL);
  ty.shape = shape;

  ty.dtype.bits = 16;
  EXPECT(dlk_softmax_forward(&tx, &ty, NULL, NULL) != DLK_SUCCESS);
  EXPECT(strstr(dlk_last_error(), "y.dtype is float16") != NULL);
  ty.dtype.bits = 32;

  dlk_softmax_params params = DLK_SOFTMAX_PARAMS_INIT;
  params.axis = 2;
  EXPECT(dlk_softmax_forward(&tx, &ty, &params, NULL) == DLK_INVALID_ARGUMENT);
  EXPECT(strstr(dlk_last_error(), "axis") != NULL);

  params.axis = 0;
  dlk_launch launch = DLK_LAUNCH_INIT;
  launch.struct_size = 0;
  EXPECT(dlk_softmax_forward(&tx, &ty, &params, &launch) == DLK_INVALID_ARGUMENT);
  EXPECT(strstr(dlk_last_error(), "softmax: launch.struct_size is 0") != NULL);

  EXPECT(memcmp(before, y, sizeof y) == 0); /* a refused call writes nothing */
  EXPECT(strcmp(dlk_status_string(DLK_INVALID_ARGUMENT), "DLK_INVALID_ARGUMENT") == 0);
}

/* Products of int8 with a factor, and of groups of rows. */
static void test_matmul(void) {
  int8_t a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8};
  float factor = 0.5f, y[4] = {0};
  int64_t square[2] = {2, 2}, one[1] = {1};
  DLTensor ta = cpu_tensor((float*)(void*)a, 2, square),
           tb = cpu_tensor((float*)(void*)b, 2, square);
  DLTensor tfactor = cpu_tensor(&factor, 1, one), ty = cpu_tensor(y, 2, square);
  ta.dtype.code = tb.dtype.code = kDLInt;
  ta.dtype.bits = tb.dtype.bits = 8;
  EXPECT(dlk_scaled_matmul(&ta, &tb, &tfactor, NULL, NULL, NULL, &ty, NULL, NULL, NULL) ==
         DLK_SUCCESS);
  EXPECT(close_to(y[0], 9.5) && close_to(y[3], 25));

  float rows[3] = {1, 2, 3}, weights[2] = {10, 100}, out[3] = {-1, -1, -1};
  int32_t ends[2] = {1, 2};
  int64_t packed[2] = {3, 1}, groups[3] = {2, 1, 1}, two[1] = {2};
  DLTensor trows = cpu_tensor(rows, 2, packed), tweights = cpu_tensor(weights, 3, groups);
  DLTensor tends = cpu_tensor((float*)(void*)ends, 1, two), tout = cpu_tensor(out, 2, packed);
  tends.dtype.code = kDLInt;
  EXPECT(dlk_grouped_matmul(&trows, &tweights, &tends, NULL, NULL, NULL, &tout, NULL, NULL) ==
         DLK_SUCCESS);
  EXPECT(out[0] == 10 && out[1] == 200 && out[2] == -1);

  /* int8: a factor for each row, and for each group. */
  int8_t small[3] = {1, 2, 3}, weight[2] = {10, 100};
  float of_rows[3] = {1, 2, 4}, of_groups[2] = {1, 0.5f};
  trows.data = small, tweights.data = weight;
  trows.dtype = tweights.dtype = ta.dtype;
  DLTensor tof_rows = cpu_tensor(of_rows, 2, packed), tof_groups = cpu_tensor(of_groups, 1, two);
  EXPECT(dlk_grouped_matmul(&trows, &tweights, &tends, NULL, &tof_rows, &tof_groups, &tout, NULL,
                            NULL) == DLK_SUCCESS);
  EXPECT(out[0] == 10 && out[1] == 200 && out[2] == -1);
}

int main(void) {
  test_version();
  test_softmax();
  test_conv();
  test_matmul();
  test_tuning();
  test_errors();
  if (failures == 0) puts("ok");
  return failures != 0;
}
