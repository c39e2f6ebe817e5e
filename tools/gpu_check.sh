#!/usr/bin/env bash
# What a machine with a GPU should show: engine parity, then the paper's workload at full size.
# Needs Python with torch and transformers; no ROS, no network.
#   tools/gpu_check.sh OUT            all of it on cuda
#   DEVICE=cpu SIZE=tiny tools/gpu_check.sh OUT
# Every part runs, whatever became of those before it; the exit code is 1 if any failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
out=${1:?usage: tools/gpu_check.sh OUT_FOLDER}
device=${DEVICE:-cuda}
size=${SIZE:-full}
dtype=${DTYPE:-bfloat16}
python=${PYTHON:-python3}
rounds=${ROUNDS:-5}
seconds=${SECONDS_IN_ALL:-480}
ways=${WAYS:-graphs compiled_graphs}
mkdir -p "$out" || exit 2
summary=()
failed=0

# part NAME PERCENT COMMAND...: run it, for so much of the whole time at most
part() {
  local name=$1 limit=$((seconds * $2 / 100)) code=0
  shift 2
  echo "== $name (at most $limit s)"
  timeout -k 2 "$limit" "$@" || code=$?
  summary+=("$name: $([ $code = 0 ] && echo ok || echo "FAILED, code $code")")
  [ $code = 0 ] || failed=1
}

part parity 36 "$python" tools/gpu_parity.py --device "$device" --seconds $((seconds * 34 / 100)) \
  --json "$out/parity.json" ${PARITY:+--ways $PARITY}

plots=()
if "$python" -c 'import matplotlib' 2>/dev/null; then plots=(--plots "$out"); fi
for way in $ways; do
  part "paper $way" 30 "$python" -m oxygen_ros.bench --preset paper --size "$size" \
    --dtype "$dtype" --device "$device" --execution "$way" --rounds "$rounds" \
    --json "$out/paper_$way.json" ${plots[@]+"${plots[@]}"}
  part "bars $way" 2 "$python" tools/gpu_bars.py "$out/paper_$way.json"
  plots=()
done

echo '== summary'
printf '%s\n' "${summary[@]}"
exit $failed
