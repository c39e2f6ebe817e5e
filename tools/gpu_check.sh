#!/usr/bin/env bash
# What a machine with a GPU should show: engine parity, then the paper's workload at full size.
# Needs Python with torch, transformers and Pillow; no ROS, no network.
#   tools/gpu_check.sh OUT            all of it on cuda
#   DEVICE=cpu SIZE=tiny tools/gpu_check.sh OUT
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: tools/gpu_check.sh OUT_FOLDER}
device=${DEVICE:-cuda}
size=${SIZE:-full}
dtype=${DTYPE:-bfloat16}
python=${PYTHON:-python3}
rounds=${ROUNDS:-5}
mkdir -p "$out"

echo '== parity'
"$python" tools/gpu_parity.py --device "$device" --json "$out/parity.json"

plots=()
if "$python" -c 'import matplotlib' 2>/dev/null; then plots=(--plots "$out"); fi

echo '== paper'
"$python" -m oxygen_ros.bench --preset paper --size "$size" --dtype "$dtype" --device "$device" \
  --rounds "$rounds" --json "$out/paper.json" "${plots[@]}"

echo '== bars'
"$python" tools/gpu_bars.py "$out/paper.json"
