#!/usr/bin/env bash
# Says why tests have failed in the last run of ctest, in at most 60 lines: they are there where a log is cut off, too.
# failed.sh BUILD_DIR. Of each test these are the lines that tell of a failure, with what follows, or else its last ones.
set -euo pipefail

log=$1/Testing/Temporary/LastTest.log
[ -f "$log" ] || exit 0
tells=': Failure$|: Failed$|^\[rank [0-9]+\] |FAILED|^(FAIL|ERROR): |Error: |^terminate |Sanitizer|ended (by|with) '
sed -E 's/\x1b\[[0-9;]*[mK]//g; s/\r$//' "$log" | tells=$tells awk -v most=58 -v follow=6 '
  /^[0-9]+\/[0-9]+ Test: / { name = $3 }
  /^Output:$/ { in_output = 1; lines = 0; next }
  /^<end of output>$/ { in_output = 0 }
  # What fails is in the log of many tests that pass, too.
  in_output && !/^-+$|^$|^tutti (error|warn|info): |^\[(---|===|  PASSED)|^Google Test trace:/ { line[++lines] = $0 }
  /^Test time = / { time = $4 }
  /^Test Failed\.$/ {
    title[++failed] = "  " name ", after " time " s:"
    told[failed] = left = 0
    for (i = 1; i <= lines; ++i) {
      if (line[i] ~ ENVIRON["tells"]) left = follow
      if (left-- > 0) text[failed, ++told[failed]] = line[i]
    }
    if (told[failed] == 0)
      for (i = lines > follow ? lines - follow + 1 : 1; i <= lines; ++i)
        text[failed, ++told[failed]] = line[i]
  }
  END {
    if (failed == 0) exit
    print "What failed tests have said:"
    share = int(most / failed)
    if (share < 4) share = 4
    for (t = 1; t <= failed && printed + share <= most; ++t) {
      print title[t]
      for (i = 1; i <= told[t] && i < share; ++i) print "    " substr(text[t, i], 1, 300)
      printed += i
    }
    if (t <= failed) print "  and " failed - t + 1 " more tests"
  }'
