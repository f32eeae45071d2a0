#!/bin/sh
# Fetches the MNIST files and checks them: download_mnist.sh [FOLDER], by default data/mnist.
set -eu

folder=${1:-data/mnist}
mirrors='https://ossci-datasets.s3.amazonaws.com/mnist https://storage.googleapis.com/cvdf-datasets/mnist'
sums='0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971  train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c  train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6  t10k-labels-idx1-ubyte.gz'

fetch() {  # URL FILE
  if command -v curl >/dev/null; then
    curl --fail --silent --show-error --location --output "$2" "$1"
  else
    wget --quiet --output-document="$2" "$1"
  fi
}

mkdir -p "$folder"
cd "$folder"
echo "$sums" | while read -r sum file; do
  if echo "$sum  $file" | sha256sum --check --status 2>/dev/null; then
    echo "$file is there already"
    continue
  fi
  for mirror in $mirrors; do
    echo "fetching $mirror/$file"
    # Under another name until it is known to be right.
    if fetch "$mirror/$file" "$file.part" &&
      echo "$sum  $file.part" | sha256sum --check --status; then
      mv "$file.part" "$file"
      continue 2
    fi
    echo "no luck: cannot be fetched, or is another file" >&2
    rm -f "$file.part"
  done
  echo "$file could not be fetched from any mirror" >&2
  exit 1
done
