# Makes the C string of the mount's README from the project's README.md: the part between two markers, code
# indented instead of fenced.
/^<!-- README of the mount: begin/,/^<!-- README of the mount: end/!d
/^<!--/d
/^```/,/^```/{
    /^```/d
    s/^./    &/
}
s/^##* *//
s/[\\"]/\\&/g
s/.*/    "&\\n"/
